"""The step of a loop that exists already."""

import functools

import torch

from . import _duet
from .trainers import check_loss, check_model


def _clipping(norm, value, either):
    """What clips the gradients of parameters as the loop would, or None."""
    given = {"clip_grad_norm": norm, "clip_grad_value": value, "clip_grad": either}
    names = [name for name, option in given.items() if option is not None]
    if len(names) > 1:
        raise _duet.ConfigError(f"[graph_step] found {' and '.join(names)}, expected one of them")
    if norm is not None:
        return functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=norm)
    if value is not None:
        return functools.partial(torch.nn.utils.clip_grad_value_, clip_value=value)
    if isinstance(either, (int, float)) and not isinstance(either, bool):
        either = _duet.ClipNorm(max_norm=either)
    if isinstance(either, _duet.ClipNorm):
        clip = torch.nn.utils.clip_grad_norm_
        return functools.partial(clip, max_norm=either.max_norm, norm_type=either.norm_type)
    if isinstance(either, _duet.ClipValue):
        return functools.partial(torch.nn.utils.clip_grad_value_, clip_value=either.clip_value)
    if either is not None:
        raise _duet.ConfigError(
            f"[graph_step] clip_grad is {either!r}, expected duet.ClipNorm(max_norm=1.0), duet.ClipValue(clip_value=0.5), a norm, "
            "or None"
        )
    return None


def graph_step(
    model,
    loss,
    optimizer: torch.optim.Optimizer,
    *,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    clip_grad: _duet.ClipNorm | _duet.ClipValue | float | None = None,
    mode: str = "graph",
    **options,
) -> _duet.GraphStep:
    """Records the step of a PyTorch loop and replays it, with the bits of the loop:

        step = duet.graph_step(model, loss, optimizer)
        for batch in loader:
            value = step(batch)     # optimizer.zero_grad(); loss(model, batch).backward(); optimizer.step()
            scheduler.step()

    model: the torch.nn.Module that holds the optimizer's parameters. Its training flags stay as you set them.
    loss: loss(model, batch) -> a 0-dim tensor, (loss, {name: 0-dim tensor}), or an output with a loss.
    optimizer: of torch.optim. Its param_groups are followed (a scheduler sets lr as before; what the loss itself sets
        counts from the next step on), and its state_dict() is what the loop's would be. To train parameters that were
        frozen, make a new graph_step once they thaw. SGD, Adam, AdamW, RMSprop and Adagrad are replayed with changing numbers; the step() of any
        other, of a subclass and of one with hooks is recorded as it is, once for each lr; where that reads a value back
        (NAdam, RAdam, Adamax, ASGD, Adafactor: their step counts) or has steps run op by op (an lr that changes at each), it
        is called op by op, after the replay, with a warning.
        Parameters on a GPU: step() itself is recorded. SGD needs nothing for it; Adam, AdamW, RMSprop, NAdam, RAdam, Adamax,
        Adadelta, Rprop and ASGD need capturable=True, or are called after the replay, as Adagrad is. An lr that is a number
        is part of the recording, so that each of its values is one of its own: to change it, make it a tensor on the GPU and
        fill that, as schedulers do.
    clip_grad_norm, clip_grad_value: what torch.nn.utils.clip_grad_norm_ and clip_grad_value_ would get; or clip_grad, as
        the trainers take it: ClipNorm, ClipValue or a norm.
    options: those of GraphTrainer's graph mode (fallback, check, check_budget, verify_interval, fuse, fuse_after,
        cache_bytes);
        graph_key and forward; amp, loss_scale and non_finite ('skip' and 'raise' need an optimizer that is replayed with
        changing numbers, on the CPU).
    """
    check_model("graph_step", model)
    check_loss("graph_step", loss, options)
    clip = _clipping(clip_grad_norm, clip_grad_value, clip_grad)
    return _duet.GraphStep(model, loss, optimizer, clip, mode, **options)
