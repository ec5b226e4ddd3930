"""A LightningModule as a task: its steps, its hooks, what it logs, its optimizer."""

import dis
import inspect
import os
from typing import Any

import torch

from . import _duet
from .lightning_logs import Log
from .lightning_optimizer import Optimizer
from .tasks import Task

_LIBRARIES = ("lightning", "pytorch_lightning")
_STAGES = {"val": "validation", "test": "test", "predict": "predict"}  # of duet's hooks and of Lightning's
_FLAGS = {"val": "validating", "test": "testing", "predict": "predicting"}
_AROUND = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
# What duet calls, of all that a module may override.
_CALLED = {"configure_model", "configure_optimizers", "on_fit_start", "on_fit_end"} | {
    f"on_{stage}_{point}" for stage in ("train", *_STAGES.values()) for point in _AROUND
}
_WITHOUT_ON = ("backward", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "transfer_batch_to_device")


class _AttachedTrainer:
    """What `self.trainer` of the module is while duet trains it."""

    def __init__(self, ranks):
        vars(self).update(
            current_epoch=0, global_step=0, batch_idx=0, dataloader_idx=0, max_epochs=-1, max_steps=-1, training=False,
            validating=False, testing=False, predicting=False, sanity_checking=False, should_stop=False,
            is_global_zero=ranks.rank == 0, global_rank=ranks.rank, world_size=ranks.world_size, callback_metrics={}, logger=None, loggers=[])  # fmt: skip

    def __getattr__(self, name):
        raise AttributeError(f"[lightning] self.trainer has no {name!r} under duet; it has {', '.join(vars(self))}")

    def __setattr__(self, name, value):
        if name not in vars(self):
            getattr(self, name)
        super().__setattr__(name, value)


class _Method:
    """A method of the module, called with those of the arguments that it asks for."""

    def __init__(self, module, name):
        self.function = getattr(module, name, lambda *_: None)
        parameters = inspect.signature(self.function).parameters
        takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values())
        self.names = list(parameters)
        self.takes_loader = "dataloader_idx" in parameters
        self.count = None if takes_any else len(parameters) - self.takes_loader

    def __call__(self, *arguments, loader=0):
        return self.function(*arguments[: self.count], **({"dataloader_idx": loader} if self.takes_loader else {}))

    def reads(self, place):
        """Whether its code reads the argument there: a number that is another in each step costs time."""
        if (getattr(self.function, "__module__", None) or "").partition(".")[0] in _LIBRARIES:
            return False  # Lightning's own methods read none
        code = getattr(self.function, "__code__", None)
        if code is None or hasattr(self.function, "__wrapped__") or self.count is None:
            return True
        named = [i.argval for i in dis.get_instructions(code)]
        return place < self.count and any(self.names[place] in (v if isinstance(v, tuple) else (v,)) for v in named)


class _EpochStart:
    """Keeps no state: a run that goes on within an epoch calls it again."""

    name = "lightning_epoch"

    def __init__(self, hooks):
        self.before_train_epoch = hooks.start_epoch


class _ModuleHooks:
    """Calls the module's hooks around runs, epochs and batches."""

    name = "LightningModule"
    priority = 0  # what it logs at the end of an evaluation is there for the others

    def __init__(self, module, trainer: _AttachedTrainer, log: Log, accumulate: int, optimizer):
        self.module, self.trainer, self.log = module, trainer, log
        self.accumulate, self.optimizer = accumulate, optimizer
        self.methods: dict[str, _Method] = {}
        self.dataset = None

    def _call(self, run, *names, arguments=()):
        self.trainer.global_step = run.progress.step
        self.log.run = run
        try:
            for name in names:
                if name not in self.methods:
                    self.methods[name] = _Method(self.module, name)
                if self.methods[name](*arguments, loader=self.trainer.dataloader_idx) == -1 and name == "on_train_batch_start":
                    raise _duet.ConfigError(
                        "[lightning] found on_train_batch_start() that gives -1, which would end the epoch; leave such "
                        "batches out of the loader"
                    )
        finally:
            self.log.run = None
        if self.optimizer is not None:
            self.optimizer.check()
        if self.trainer.should_stop:
            run.request_stop("self.trainer.should_stop")

    def _call_with_batches(self, run, name, *outputs):
        if _is_own(self.module, name):
            for place, batch in enumerate(run.batches if run.batch is None else [run.batch]):
                self._call(run, name, arguments=(*outputs, batch, self.trainer.batch_idx + place))

    def _keep(self, metrics):
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})

    def before_train(self, run):
        self.log.attach()
        self.trainer.training, self.trainer.should_stop = True, False
        self.trainer.max_epochs, self.trainer.max_steps = run.progress.max_epochs or -1, run.progress.max_steps or -1
        self._call(run, "on_fit_start", "on_train_start")

    def start_epoch(self, run):
        self.trainer.current_epoch = run.progress.epoch
        self._call(run, "on_train_epoch_start")

    def before_train_iter(self, run):
        self.trainer.current_epoch = run.progress.epoch
        self.trainer.batch_idx = run.progress.step_in_epoch * self.accumulate
        self._call(run)
        self._call_with_batches(run, "on_train_batch_start")

    def after_train_iter(self, run):
        self.trainer.batch_idx = (run.progress.step_in_epoch - 1) * self.accumulate
        self.log.end_step(run)
        self._call_with_batches(run, "on_train_batch_end", {"loss": run.loss})
        self._call(run)

    def after_train_epoch(self, run):
        self.log.training.merge_metrics(run)
        values = self.log.training.compute()
        self._keep({name.removesuffix("_epoch"): value for name, value in values.items()} | values)
        self._call(run, "on_train_epoch_end")
        for name, value in values.items():
            run.log(name, value)

    def after_train(self, run):
        self._call(run, "on_train_end", "on_fit_end", "teardown", arguments=("fit",))
        self.trainer.training = False

    def _before(self, run, stage):
        self.log.attach()
        self.dataset, self.trainer.dataloader_idx, self.trainer.training = None, -1, False
        setattr(self.trainer, _FLAGS[stage], True)
        self._call(run, f"on_{_STAGES[stage]}_start")

    def _before_iter(self, run, stage):
        if run.dataset != self.dataset:
            self.dataset, self.trainer.batch_idx = run.dataset, 0
            self.trainer.dataloader_idx += 1
        self._call_with_batches(run, f"on_{_STAGES[stage]}_batch_start")

    def _after_iter(self, run, stage):
        self._call_with_batches(run, f"on_{_STAGES[stage]}_batch_end", run.outputs)
        self.trainer.batch_idx += 1

    def _after_epoch(self, run, stage):
        self._keep(run.metrics)
        self.log.of_epoch = {} if stage != "predict" else None
        try:
            self._call(run, f"on_{_STAGES[stage]}_epoch_end")
            for name, value in self.log.values_of_epoch(run).items():
                run.set_metric(name, value)
        finally:
            self.log.of_epoch = None
        self._keep(run.metrics)

    def _after(self, run, stage):
        self._call(run, f"on_{_STAGES[stage]}_end")
        setattr(self.trainer, _FLAGS[stage], False)
        self.trainer.training, self.trainer.dataloader_idx = run.kind == "training", 0

    def state_dict(self):
        return self.log.training.state_dict()

    def load_state_dict(self, state):
        self.log.training.load_state_dict(state)


def _add_stage(stage):
    def at(call):
        return lambda self, run: call(self, run, stage)

    setattr(_ModuleHooks, f"before_{stage}", at(_ModuleHooks._before))
    setattr(_ModuleHooks, f"before_{stage}_epoch", lambda self, run: self._call(run, f"on_{_STAGES[stage]}_epoch_start"))
    setattr(_ModuleHooks, f"before_{stage}_iter", at(_ModuleHooks._before_iter))
    setattr(_ModuleHooks, f"after_{stage}_iter", at(_ModuleHooks._after_iter))
    setattr(_ModuleHooks, f"after_{stage}_epoch", at(_ModuleHooks._after_epoch))
    setattr(_ModuleHooks, f"after_{stage}", at(_ModuleHooks._after))


for _stage in _STAGES:
    _add_stage(_stage)


def lightning(module) -> Task:
    """A LightningModule: its training_step, validation_step, test_step, predict_step, configure_optimizers, and its
    hooks around runs, epochs and batches. What it logs with self.log() in a step are results of the step; in
    validation_step and test_step they are metrics. Manual optimization and what duet does not call are refused."""
    if getattr(module, "automatic_optimization", True) is False:
        raise _duet.ConfigError("[lightning] found manual optimization; write the loop with duet.graph_step")
    _refuse_what_is_not_called(module)
    return Task(module, lambda options: _arguments(module, options))


def _arguments(module, options) -> dict[str, Any]:
    ranks = _duet.current_ranks()
    trainer, accumulate = _AttachedTrainer(ranks), options.get("accumulate", 1)
    log = Log(module, trainer, accumulate)
    log.attach()
    if ranks.world_size == 1 or int(os.environ.get("LOCAL_RANK", ranks.rank)) == 0:  # once on each machine
        getattr(module, "prepare_data", lambda: None)()
    ranks.barrier()
    for name, given in (("setup", ("fit",)), ("configure_model", ())):
        getattr(module, name, lambda *_: None)(*given)
    training_step = _step_of(module, "training_step", trainer, log, log.training, counts=accumulate > 1)
    validation_step, test_step, predict_step = (
        _step_of(module, name, trainer, log, log.evaluation) for name in ("validation_step", "test_step", "predict_step")
    )

    def loss(module, batch):
        output, values = training_step(batch)
        return (output["loss"] if isinstance(output, dict) else output), values

    def validate(module, batch):
        output, values = (test_step if has_test and trainer.testing else validation_step)(batch)
        if isinstance(output, dict):
            values.update(output)
        elif output is not None:
            values["loss"] = output
        return values

    optimizer = Optimizer(module.configure_optimizers(), module) if options.get("optimizer") is None else None
    hooks = _ModuleHooks(module, trainer, log, accumulate, optimizer)
    arguments = {
        "loss": loss,
        "hooks": [hooks, _EpochStart(hooks)],
        "metrics": [log.evaluation],
        **(optimizer.options if optimizer else {}),
    }
    has_test = _is_own(module, "test_step")
    if has_test or _is_own(module, "validation_step"):
        arguments["validation_step"] = validate
    if hasattr(module, "predict_step"):
        arguments["predict_step"] = lambda module, batch: predict_step(batch)[0]
    return arguments


def _step_of(module, name, trainer, log, reductions, counts=False):
    """The module's step as a function of a batch that gives its output and what it logged."""
    step = _Method(module, name)

    def index():
        return trainer.batch_idx

    def next_index():
        trainer.batch_idx += 1
        return trainer.batch_idx - 1

    def loader():
        return trainer.dataloader_idx

    index_of = (next_index if counts else index) if step.reads(1) else int
    loader_of = loader if step.takes_loader else int

    def of_batch(batch, _=step.function):  # a default, where duet.host_numbers finds the user's code
        return log.of_step(lambda: step(batch, index_of(), loader=loader_of()), reductions)

    return of_batch


def _refuse_what_is_not_called(module):
    known = _base_of(module)
    for name in dir(type(module)):
        is_hook = name.startswith(("on_", "configure_")) or name in _WITHOUT_ON
        if is_hook and name not in _CALLED and _is_own(module, name) and (known is None or hasattr(known, name)):
            raise _duet.ConfigError(
                f"[lightning] {type(module).__name__} defines {name}(), which duet does not call; use an option of the "
                "trainer or a hook of duet for it, or write the loop with duet.graph_step"
            )


def _base_of(module):
    """Lightning's own class, if the module is one of its."""
    bases = (c for c in type(module).__mro__ if c.__name__ == "LightningModule" and c.__module__.split(".")[0] in _LIBRARIES)
    return next(bases, None)


def _is_own(module, method: str) -> bool:
    """Whether the user's class defines it: Lightning's own does nothing."""
    function = getattr(type(module), method, None)
    return function is not None and function is not getattr(_base_of(module), method, None)
