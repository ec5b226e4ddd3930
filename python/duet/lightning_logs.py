"""self.log() of a LightningModule: results of steps, means of epochs, metrics of evaluations."""

import io
import pickle

import torch

from . import _duet

_SIZE = " (batch_size)"  # of the result that weighs another one
_REDUCTIONS = {
    "mean": ("mean", torch.mean),
    "sum": ("sum", sum, torch.sum),
    "max": ("max", max, torch.max, torch.amax),
    "min": ("min", min, torch.min, torch.amin),
}


def _reduction_of(reduce_fx) -> str:
    for name, spellings in _REDUCTIONS.items():
        if any(reduce_fx is spelling or reduce_fx == spelling for spelling in spellings):
            return name
    raise _duet.ConfigError(f"[lightning] found reduce_fx={reduce_fx!r} in self.log(), expected mean, sum, max or min")


class Reductions:
    """Values that are logged over an epoch: means by weight, sums, extremes, and torchmetrics. Of evaluations it is a metric of duet."""

    def __init__(self, module):
        self.module = module
        self.kinds: dict[str, str] = {}  # of what steps log
        self.shown: dict[str, str] = {}  # that the figure of the epoch has
        self.totals: dict[str, torch.Tensor] = {}  # two float64 numbers: the sum or extreme, and its weight
        self.metrics: dict = {}  # torchmetrics
        self.values: dict[str, float] = {}  # the last ones
        self.epoch = 0  # that the totals are of

    def log(self, name, value, weight):
        kind, value = self.kinds.get(name, "mean"), value.detach().double()
        if name not in self.totals:
            self.totals[name] = value.new_tensor([{"max": -torch.inf, "min": torch.inf}.get(kind, 0), 0])
        total = self.totals[name]
        if kind in ("max", "min"):
            total[0] = getattr(torch, kind + "imum")(total[0], value)
        else:
            total[0] += value * weight if kind == "mean" else value
            total[1] += weight

    def compute(self) -> dict[str, float]:
        self.values = {name: _number(name, metric.compute()) for name, metric in self.metrics.items()}
        for name, (total, weight) in ((name, total.tolist()) for name, total in self.totals.items()):
            self.values[self.shown.get(name, name)] = total / weight if self.kinds.get(name, "mean") == "mean" else total
        self.reset()
        return self.values

    def reset(self):
        self.totals.clear()
        for metric in self.metrics.values():
            metric.reset()
            for part in _parts(metric).values():
                part._to_sync = part.sync_on_compute
        self.metrics.clear()

    def state_dict(self):
        return {"epoch": torch.tensor(self.epoch), **{f"totals.{name}": total for name, total in self.totals.items()}}

    def load_state_dict(self, state):
        self.epoch = int(state["epoch"])
        self.totals = {name.removeprefix("totals."): total.clone() for name, total in state.items() if name != "epoch"}

    def go_on_in(self, epoch):
        """What a rollback over the end of an epoch has loaded is of another one."""
        if self.epoch != epoch:
            self.totals.clear()
        self.epoch = epoch

    def names(self):
        return list(self.values)

    def add(self, batch, outputs, weight):
        for name, value in outputs.items():
            is_plain_loss = name == "loss" and name not in self.kinds  # duet's own figure
            if value.dim() == 0 and not is_plain_loss and not name.endswith(_SIZE):
                self.log(name, value, outputs.get(name + _SIZE, weight))

    def rows(self):
        """What a rank has, as bytes: another one may have logged other names, or nothing."""
        totals = {name: total.cpu() for name, total in self.totals.items()}
        return [torch.frombuffer(bytearray(pickle.dumps((self.kinds, totals, self._states()))), dtype=torch.uint8)]

    def set_rows(self, rows):
        bytes_of_ranks, merged, states = io.BytesIO(rows[0].numpy().tobytes()), {}, []
        while bytes_of_ranks.tell() < rows[0].numel():
            kinds, totals, metrics = pickle.load(bytes_of_ranks)
            self.kinds |= kinds
            states.append(metrics)
            for name, total in totals.items():
                merged.setdefault(name, []).append(total)
        for name, of_ranks in merged.items():
            kind = self.kinds.get(name, "mean")
            stacked = torch.stack(of_ranks)
            self.totals[name] = getattr(stacked, "a" + kind)(0) if kind in ("max", "min") else stacked.sum(0)
        self._merge(states)

    def merge_metrics(self, run):
        """The totals of training are over all ranks as they are."""
        if _duet.current_ranks().world_size > 1:
            self._merge(run.gather(self._states()))

    def _states(self):
        paths = {id(part): path for path, part in self.module.named_modules()}
        return {name: (paths.get(id(metric)), _states(name, metric)) for name, metric in self.metrics.items()}

    def _merge(self, of_ranks):
        states = {}
        for name, (path, state) in (item for metrics in of_ranks for item in metrics.items()):
            if name not in self.metrics and path is None:
                raise _duet.ConfigError(f"[lightning] found the metric {name!r} on another rank only, expected a member of the module")
            if name not in self.metrics:
                self.metrics[name] = self.module.get_submodule(path)
            states.setdefault(name, []).append(state)
        for name, of_metric in states.items():
            _merge(self.metrics[name], of_metric)


def _number(name, value):
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise _duet.ConfigError(f"[lightning] found the metric {name!r} that gives {type(value).__name__}, expected one number") from error


def _parts(metric):
    """The metrics in one of torchmetrics, itself among them, that have states."""
    return {path: part for path, part in metric.named_modules() if hasattr(part, "_reductions")} if hasattr(metric, "named_modules") else {}


def _states(name, metric):
    parts = _parts(metric)
    if not parts:
        raise _duet.ConfigError(f"[lightning] found {type(metric).__name__} logged as {name!r} on several ranks, expected a metric of torchmetrics")
    return {path: {state: getattr(part, state) for state in part._reductions} for path, part in parts.items()}


def _merge(metric, of_ranks):
    """As torchmetrics combines the states of ranks, which shall not be done twice."""
    for path, part in _parts(metric).items():
        for state, reduce in part._reductions.items():
            values = [states[path][state] for states in of_ranks]
            if isinstance(values[0], list):
                setattr(part, state, [value for of_rank in values for value in of_rank])  # as if one had seen all
            else:
                setattr(part, state, torch.stack(values) if reduce is None else reduce(torch.stack(values)))
        part._computed, part._to_sync, part._update_count = None, False, max(part._update_count, 1)


class Log:
    """Where self.log() leads: to the results of the step that runs, else to the run or to the evaluation that ends."""

    def __init__(self, module, trainer, accumulate):
        self.module, self.trainer, self.accumulate = module, trainer, accumulate
        self.step: dict[str, torch.Tensor] | None = None  # the results of the step that runs
        self.run = None  # lent to the hook that runs
        self.of_epoch: dict[str, tuple[float, bool]] | None = None  # of the evaluation that ends; whether as the mean over ranks
        self.training, self.evaluation = Reductions(module), Reductions(module)
        self.reductions = self.training  # of what runs
        self.of_epoch_end = Reductions(module)  # torchmetrics that are logged there

    def attach(self):
        """Another trainer may have trained the module since, Lightning's too."""
        self.module.trainer = self.trainer
        for part in self.module.modules():
            if (part is self.module or hasattr(part, "log_dict")) and vars(part).get("log") != self.log:  # or each were another object
                part.log, part.log_dict = self.log, self.log_dict

    def log(self, name, value, prog_bar=False, logger=None, on_step=None, on_epoch=None, reduce_fx="mean", *_, sync_dist=False, batch_size=None, **__):
        if self.module.trainer is not self.trainer:  # Lightning's own, since
            return type(self.module).log(
                self.module, name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, *_, sync_dist=sync_dist, batch_size=batch_size, **__)  # fmt: skip
        if hasattr(value, "compute") and hasattr(value, "update"):
            (self.reductions if self.of_epoch is None else self.of_epoch_end).metrics[name] = value
        elif self.step is not None:
            self._log_in_step(name, value, on_step, on_epoch, _reduction_of(reduce_fx), batch_size)
        elif self.of_epoch is not None:
            self.of_epoch[name] = float(value), sync_dist
        elif on_epoch or not self.trainer.training:
            raise _duet.ConfigError(f"[lightning] found self.log({name!r}) for an epoch in a hook, expected it in a step or at the epoch's end")
        elif self.run is not None:
            self.run.log(name, float(value))

    def _log_in_step(self, name, value, on_step, on_epoch, kind, batch_size):
        value = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        if value.numel() != 1:
            raise _duet.ConfigError(f"[lightning] found {tuple(value.shape)} numbers in self.log({name!r}), expected one")
        if self.reductions is self.training:
            if not on_epoch:
                self.step[name] = value.reshape(()) if value.dim() else value
                return
            if (self.accumulate > 1 or self.trainer.world_size > 1) and (kind != "mean" or batch_size is not None):
                raise _duet.ConfigError(
                    f"[lightning] found reduce_fx or batch_size of {name!r} in training_step with accumulate or several ranks, expected a mean "
                    "over samples"
                )
            both = on_step is None or on_step
            name, of_epoch = (f"{name}_step", f"{name}_epoch") if both else (name, name)
            self.training.shown[name] = of_epoch
        self.reductions.kinds[name] = kind
        self.step[name] = value.reshape(()) if value.dim() else value
        if batch_size is not None:
            self.step[name + _SIZE] = torch.tensor(float(batch_size))

    def values_of_epoch(self, run):
        """What the hooks of all ranks have logged at the end of an evaluation: means over ranks, or the first one's."""
        found = {}
        for of_rank in run.gather(self.of_epoch or {}):
            for name, value in of_rank.items():
                found.setdefault(name, []).append(value)
        self.of_epoch_end.merge_metrics(run)
        means = {name: sum(v for v, _ in values) / len(values) if values[0][1] else values[0][0] for name, values in found.items()}
        return means | self.of_epoch_end.compute()

    def log_dict(self, dictionary, *arguments, **options):
        for name, value in dictionary.items():
            self.module.log(name, value, *arguments, **options)

    def of_step(self, step, reductions):
        self.step, self.reductions = {}, reductions
        try:
            return step(), self.step
        finally:
            self.step, self.reductions = None, self.training

    def end_step(self, run):
        self.training.go_on_in(run.progress.epoch)
        results = run.results
        for name in self.training.kinds.keys() & results.keys():
            self.training.log(name, results[name], results.get(name + _SIZE, run.weight))
        self.trainer.callback_metrics.update({name: value for name, value in results.items() if not name.endswith(_SIZE)})
