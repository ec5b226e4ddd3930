"""The optimizer that a LightningModule configures, as one of duet's."""

import torch

from . import _duet

_NUMBERS = {
    "SGD": ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    "Adam": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
    "AdamW": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
    "RMSprop": ("lr", "weight_decay", "eps", "momentum", "alpha", "centered", "maximize"),
    "Adagrad": ("lr", "weight_decay", "eps", "lr_decay", "initial_accumulator_value", "maximize"),
}
_OF_A_GROUP = ("lr", "weight_decay", "betas", "eps", "momentum")
_HOW = ("params", "param_names", "name", "foreach", "fused", "capturable", "differentiable")  # it computes, not what


class Optimizer:
    """What configure_optimizers() gave; `options` are those of a trainer."""

    def __init__(self, configured, module):
        self.given = _the_only(configured)
        kind = type(self.given).__name__
        if kind not in _NUMBERS or type(self.given) is not getattr(torch.optim, kind):
            raise _duet.ConfigError(
                f"[lightning] found {type(self.given).__module__}.{kind} in configure_optimizers(), expected one of "
                f"torch.optim's {', '.join(_NUMBERS)}; give the trainer an optimizer=, or train with duet.graph_step"
            )
        if self.given._optimizer_step_pre_hooks or self.given._optimizer_step_post_hooks:
            raise _duet.ConfigError(f"[lightning] found hooks of {kind}.step(); train with duet.graph_step, which calls them")
        self.present = self._numbers()
        groups = [{name: _plain(value) for name, value in group.items()} for group in self.present]
        first = {name: groups[0][name] for name in _NUMBERS[kind]}
        neutral = type(self.given)([torch.zeros(1)]).defaults
        for group in groups:
            for name, value in group.items():
                if value != (first[name] if name in first else neutral.get(name)) and not (name in first and name in _OF_A_GROUP):
                    raise _duet.ConfigError(
                        f"[lightning] found {name}={value} of {kind}, which duet's does not have or has for all groups alike; "
                        "train with duet.graph_step"
                    )
        own = [{name: value for name, value in group.items() if name in first and value != first[name]} for group in groups]
        params = [[p for p in group["params"] if p.requires_grad] for group in self.given.param_groups]
        trained = {id(p) for group in params for p in group}
        is_whole = trained == {id(p) for p in module.parameters() if p.requires_grad}
        self.options = {"optimizer": getattr(_duet, kind)(**first)}
        if len(params) > 1 or not is_whole:
            self.options["param_groups"] = [{"params": p, **numbers} for p, numbers in zip(params, own)]
            self.options["allow_untrained"] = not is_whole

    def _numbers(self):
        return [{name: value for name, value in group.items() if name not in _HOW} for group in self.given.param_groups]

    def check(self):
        """duet steps an optimizer of its own: what the module sets in the one that it has kept would be lost."""
        if self._numbers() != self.present:
            raise _duet.ConfigError(
                "[lightning] found other numbers in the optimizer of configure_optimizers() than it had at first, which "
                "duet's does not follow; give the trainer schedules=[...], or set them in a hook of duet with run.set()"
            )


def _plain(value):
    return float(value) if isinstance(value, torch.Tensor) else list(map(_plain, value)) if isinstance(value, tuple) else value


def _the_only(configured):
    schedulers = []
    if isinstance(configured, (list, tuple)):
        optimizers = configured
        if len(configured) == 2 and isinstance(configured[0], (list, tuple)):
            optimizers, schedulers = configured
        if len(optimizers) != 1:
            raise _duet.ConfigError(
                f"[lightning] found {len(optimizers)} optimizers in configure_optimizers(), expected one; train with duet.graph_step"
            )
        configured = optimizers[0]
    if isinstance(configured, dict):
        schedulers = schedulers or configured.get("lr_scheduler")
        configured = configured["optimizer"]
    if schedulers:
        raise _duet.ConfigError(
            "[lightning] found an lr_scheduler in configure_optimizers(), which duet does not step; give the trainer "
            "schedules=[duet.Cosine(...), ...] and let the function return the optimizer alone"
        )
    return configured
