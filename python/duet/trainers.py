"""The trainers: classes over one binding, where the mode is a word."""

import warnings

import torch

from . import _duet


class Hook:
    """Something that happens around steps: define methods named like the points you need.

    before_run, after_run, before_train, after_train, before_train_epoch, after_train_epoch, before_train_iter,
    after_train_iter, before_val, after_val, before_val_epoch, after_val_epoch, before_val_iter, after_val_iter (the same
    with test and predict), before_save_checkpoint, after_save_checkpoint, after_load_checkpoint, after_backward, before_optimizer_step,
    after_optimizer_step, on_log and on_exception take a Run; in_step takes a StepView and is captured with the step.
    state_dict() and load_state_dict() keep what the hook needs in checkpoints. With wants_outputs, run.step_outputs holds
    what the model gave in a step.
    """

    name: str | None = None  # of its state in a checkpoint; None: that of the class
    priority: int = 50  # low runs first, 0 to 100
    after: list[str] = []  # names of hooks that must run before this one
    wants_outputs: bool = False  # whether the step keeps the model's outputs for it


class Metric:
    """A figure over a whole evaluation. add() must not read back from the device; compute() is called once.

    Where several ranks evaluate, it also has sums(device), the tensors that are summed over them in place, or, for a
    figure that is no function of sums, rows(), tensors on the CPU, and set_rows(rows), which gets those of all ranks
    one after the other before compute().
    """

    def names(self) -> list[str]:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError

    def add(self, batch, outputs, weight: float) -> None:
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        raise NotImplementedError


_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel")


def check_model(who, model):
    if not isinstance(model, torch.nn.Module):
        raise _duet.ConfigError(f"[{who}] model is {type(model).__name__}, expected a torch.nn.Module")
    for cls in (cls for module in model.modules() for cls in type(module).__mro__):
        if cls.__name__ in _WRAPPERS:
            raise _duet.ConfigError(
                f"[{who}] found a model in {cls.__name__}, which sums gradients by itself, expected the module in it; trainers that are "
                "made while duet.init_distributed() is held sum them"
            )


def check_loss(who, loss, options):
    if isinstance(loss, torch.nn.modules.loss._Loss) and options.get("forward") is None:
        raise _duet.ConfigError(
            f"[{who}] loss is {type(loss).__name__}(), expected loss(model, batch), or loss(prediction, batch) "
            "with forward=; write loss=lambda prediction, batch: F.cross_entropy(prediction, batch[1]), "
            "forward=lambda model, batch: model(batch[0])"
        )


def _warn_of_lone_ranks():
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1 and _duet.current_ranks().world_size == 1:
        warnings.warn(
            f"[Trainer] torch.distributed has {group.get_world_size()} ranks, each of which trains alone here; hold duet.init_distributed() "
            "while trainers are made to train one model together",
            stacklevel=4,
        )


def _arguments(model, loss, options):
    """A task of duet.hugging_face() or duet.lightning() brings its model and its functions."""
    from .extra_state import extra_state
    from .tasks import Task

    _warn_of_lone_ranks()
    arguments = {"loss": loss}
    if isinstance(model, Task):
        if loss is not None:
            raise _duet.ConfigError("[Trainer] found a loss beside a task, which has one; leave it out")
        check_model("Trainer", model.model)
        arguments, model = model.arguments(options), model.model
    else:
        check_model("Trainer", model)
        check_loss("Trainer", loss, options)
    merged = {**arguments, **options}
    for name, own in (("hooks", extra_state(model)), ("metrics", [])):  # the task's and the user's
        merged[name] = [*own, *(arguments.get(name) or []), *(options.get(name) or [])]
    return model, merged


class EagerTrainer(_duet.BaseTrainer):
    """Runs each step op by op: what you debug with.

    model: a torch.nn.Module, or a task of duet.hugging_face() or duet.lightning().
    loss: loss(model, batch), or loss(prediction, batch) with forward=forward(model, batch). It gives a 0-dim tensor, a
        pair (loss, {name: 0-dim tensor to log}), or a dict or output that has a 'loss'.

    Options: optimizer, schedules, clip_grad, log_grad_norm, amp, amp_eval, loss_scale, non_finite, param_groups, allow_untrained,
    freeze (names of modules or parameters that are not trained, with * for any text), forward, validation_step, predict_step, weight, graph_key, hooks, default_hooks, metrics, work_dir, device; of the
    loop max_steps, max_epochs, max_seconds, accumulate, val_interval, val_by_epoch, num_sanity_val_steps, limit_*_batches, deterministic; of
    graph mode
    fallback, fuse, fuse_after, cache_bytes, check, check_budget, verify_interval.
    """

    def __init__(self, model, loss=None, **options):
        model, arguments = _arguments(model, loss, options)
        super().__init__("eager", model, **arguments)


class GraphTrainer(_duet.BaseTrainer):
    __doc__ = "Records each step and replays it, with the bits of EagerTrainer: what you train with." + (
        EagerTrainer.__doc__ or ""
    ).partition("\n")[2]

    def __init__(self, model, loss=None, **options):
        model, arguments = _arguments(model, loss, options)
        super().__init__("graph", model, **arguments)


def make_trainer(mode: str, model, loss=None, **options):
    """EagerTrainer or GraphTrainer, the mode ('eager', 'graph') as a value."""
    if mode not in ("eager", "graph"):
        raise _duet.ConfigError(f"[make_trainer] mode is {mode!r}, expected 'eager' or 'graph'")
    return (GraphTrainer if mode == "graph" else EagerTrainer)(model, loss, **options)
