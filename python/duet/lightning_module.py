"""A LightningModule as a task: its steps, its hooks, what it logs, its optimizer."""

from typing import Any

import torch

from . import _duet
from .tasks import Task

_OPTIMIZERS = {
    "SGD": ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    "Adam": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
    "AdamW": ("lr", "weight_decay", "betas", "eps", "amsgrad", "maximize"),
    "RMSprop": ("lr", "weight_decay", "eps", "momentum", "alpha", "centered", "maximize"),
    "Adagrad": ("lr", "weight_decay", "eps", "lr_decay", "initial_accumulator_value", "maximize"),
}


def _optimizer_of(configured) -> dict[str, Any]:
    """What configure_optimizers() gave, as options of a trainer."""
    if isinstance(configured, dict):
        if "lr_scheduler" in configured:
            raise _duet.ConfigError(
                "[lightning] found an lr_scheduler in configure_optimizers(), which duet does not step; give the "
                "trainer schedules=[duet.Cosine(...), ...] and let the function return the optimizer alone"
            )
        configured = configured["optimizer"]
    name = type(configured).__name__
    if name not in _OPTIMIZERS:
        raise _duet.ConfigError(
            f"[lightning] found {name} in configure_optimizers(), expected one of {', '.join(_OPTIMIZERS)}; give the "
            "trainer an optimizer of duet's, or train with duet.graph_step"
        )
    numbers = {key: configured.defaults[key] for key in _OPTIMIZERS[name]}
    if "betas" in numbers:
        numbers["betas"] = list(numbers["betas"])
    groups = [
        {
            "params": group["params"],
            **{
                key: group[key]
                for key in ("lr", "weight_decay", "betas", "eps", "momentum")
                if key in group and key in numbers and _comparable(group[key]) != _comparable(numbers[key])
            },
        }
        for group in configured.param_groups
    ]
    return {"optimizer": getattr(_duet, name)(**numbers), **({"param_groups": groups} if len(groups) > 1 else {})}


def _comparable(value):
    return tuple(value) if isinstance(value, list) else value


# What a module may override that acts inside a step, which duet's trainer does by its own options.
_NOT_CALLED = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


class _AttachedTrainer:
    """What `self.trainer` of the module is while duet trains it."""

    def __init__(self):
        self.current_epoch = self.global_step = self.batch_idx = 0
        self.max_epochs = self.max_steps = -1
        self.training = self.sanity_checking = False
        self.is_global_zero = True
        self.callback_metrics: dict[str, Any] = {}

    def __getattr__(self, name):
        raise AttributeError(f"[lightning] self.trainer has no {name!r} under duet; it has {', '.join(vars(self))}")


class _Log:
    """self.log() of the module: a result of the step within one, a value of the run between them."""

    def __init__(self):
        self.step: dict[str, torch.Tensor] | None = None  # the results of the step that runs
        self.run = None  # lent to the hook that runs
        # torchmetrics, computed when the epoch of training, or the evaluation, ends that logged them
        self.of_training: dict[str, Any] = {}
        self.of_evaluation: dict[str, Any] = {}
        self.metrics = self.of_training  # of what runs

    def log(self, name, value, *_, **__):
        if hasattr(value, "compute") and hasattr(value, "update"):
            self.metrics[name] = value
        elif self.step is not None:
            self.step[name] = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        elif self.run is not None:
            self.run.log(name, float(value))

    def log_dict(self, values, *_, **__):
        for name, value in values.items():
            self.log(name, value)

    def of_step(self, step, batch, index, metrics):
        self.step, self.metrics = {}, metrics
        try:
            return step(batch, index), self.step
        finally:
            self.step, self.metrics = None, self.of_training

    @staticmethod
    def end_epoch(metrics) -> dict[str, float]:
        values = {name: float(metric.compute()) for name, metric in metrics.items()}
        for metric in metrics.values():
            metric.reset()
        metrics.clear()
        return values


class _ModuleHooks:
    """Calls the module's hooks around runs, epochs and batches."""

    name = "LightningModule"

    def __init__(self, module, trainer: _AttachedTrainer, log: _Log):
        self.module, self.trainer, self.log = module, trainer, log

    def _call(self, run, *names, arguments=()):
        self.trainer.global_step = run.progress.step
        self.log.run = run
        try:
            for name in names:
                getattr(self.module, name, _nothing)(*arguments)
        finally:
            self.log.run = None

    def _call_with_batch(self, run, name, *outputs):
        if _is_own(self.module, name):
            batch = run.batch if run.batch is not None else run.batches[0]
            self._call(run, name, arguments=(*outputs, batch, self.trainer.batch_idx))

    def before_train(self, run):
        self.trainer.training = True
        self.trainer.max_epochs, self.trainer.max_steps = run.progress.max_epochs or -1, run.progress.max_steps or -1
        self._call(run, "on_fit_start", "on_train_start")

    def before_train_epoch(self, run):
        self.trainer.current_epoch = run.progress.epoch
        self._call(run, "on_train_epoch_start")

    def before_train_iter(self, run):
        self.trainer.batch_idx = run.progress.step_in_epoch
        self._call(run)
        self._call_with_batch(run, "on_train_batch_start")

    def after_train_iter(self, run):
        self._call_with_batch(run, "on_train_batch_end", {"loss": run.loss})

    def after_train_epoch(self, run):
        self._call(run, "on_train_epoch_end")
        for name, value in self.log.end_epoch(self.log.of_training).items():
            run.log(name, value)

    def after_train(self, run):
        self._call(run, "on_train_end", "on_fit_end")
        self.trainer.training = False

    def before_val(self, run):
        self.trainer.batch_idx = 0
        self._call(run, "on_validation_start")

    def before_val_epoch(self, run):
        self._call(run, "on_validation_epoch_start")

    def before_val_iter(self, run):
        self._call_with_batch(run, "on_validation_batch_start")

    def after_val_iter(self, run):
        self._call_with_batch(run, "on_validation_batch_end", run.outputs)
        self.trainer.batch_idx += 1

    def after_val_epoch(self, run):
        self.trainer.callback_metrics.update(run.metrics)
        self._call(run, "on_validation_epoch_end")

    def after_val(self, run):
        self._call(run, "on_validation_end")


class _LoggedMeans:
    """Means over an evaluation of the numbers that validation_step logs, and its torchmetrics."""

    def __init__(self, log: _Log):
        self.log = log
        self.totals: dict[str, torch.Tensor] = {}  # sum and weight

    def names(self):
        return list(self.totals)

    def reset(self):
        self.totals.clear()

    def add(self, batch, outputs, weight):
        for name, value in outputs.items():
            if name != "loss" and value.dim() == 0:
                total = self.totals.setdefault(name, torch.zeros(2, dtype=torch.float64, device=value.device))
                total += torch.stack([value.double() * weight, total.new_tensor(weight)])

    def sums(self, device):
        return [total.to(device) for total in self.totals.values()]

    def compute(self):
        means = {name: float(total[0] / total[1]) for name, total in self.totals.items()}
        return {**means, **self.log.end_epoch(self.log.of_evaluation)}


def lightning(module) -> Task:
    """A LightningModule: its training_step, validation_step, predict_step, configure_optimizers, and its hooks around
    runs, epochs and batches. What it logs with self.log() in a step are results of the step; in validation_step they
    are metrics, meant over the evaluation. Manual optimization and hooks inside the step are refused."""
    if getattr(module, "automatic_optimization", True) is False:
        raise _duet.ConfigError("[lightning] found manual optimization; write the loop with duet.graph_step")
    for name in _NOT_CALLED:
        if _is_own(module, name):
            raise _duet.ConfigError(
                f"[lightning] {type(module).__name__} defines {name}(), which acts inside the step and is not called "
                "by duet; use the trainer's clip_grad and a hook of duet, or write the loop with duet.graph_step"
            )
    trainer, log = _AttachedTrainer(), _Log()
    module.trainer = trainer
    module.log, module.log_dict = log.log, log.log_dict

    def loss(module, batch):
        output, values = log.of_step(module.training_step, batch, trainer.batch_idx, log.of_training)
        return (output["loss"] if isinstance(output, dict) else output), values

    def validate(module, batch):
        output, values = log.of_step(module.validation_step, batch, trainer.batch_idx, log.of_evaluation)
        if isinstance(output, dict):
            values.update(output)
        elif output is not None:
            values["loss"] = output
        return values

    arguments = {
        "loss": loss,
        "hooks": [_ModuleHooks(module, trainer, log)],
        "metrics": [_LoggedMeans(log)],
        **_optimizer_of(module.configure_optimizers()),
    }
    if _is_own(module, "validation_step"):
        arguments["validation_step"] = validate
    if hasattr(module, "predict_step"):
        arguments["predict_step"] = lambda module, batch: module.predict_step(batch, 0)
    return Task(module, arguments)


def _nothing(*_):
    pass


def _is_own(module, method: str) -> bool:
    """Whether the user's class defines it: Lightning's own does nothing."""
    function = getattr(type(module), method, None)
    return function is not None and not function.__module__.startswith(("lightning", "pytorch_lightning"))
