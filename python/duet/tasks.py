"""Models of other libraries as tasks: what a trainer needs of them, in one object."""

import dataclasses
from typing import Any, Callable

from . import _duet


@dataclasses.dataclass(frozen=True)
class Task:
    model: Any
    arguments: dict[str, Any]


def hugging_face(model, weight: Callable | None = None) -> Task:
    """A Hugging Face model whose batches hold its labels: model(**batch).loss is trained; predictions and metrics get
    its logits as 'prediction'. weight(batch) is what the loss is a mean over; without it the rows of the batch."""

    def predict(model, batch):
        return {"prediction": model(**batch).logits}

    def validate(model, batch):
        output = model(**batch)
        return {"loss": output.loss, "prediction": output.logits}

    return Task(
        model,
        {
            "loss": lambda model, batch: model(**batch).loss,
            "validation_step": validate,
            "predict_step": predict,
            "weight": weight,
        },
    )


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


def lightning(module) -> Task:
    """A LightningModule: its training_step, validation_step, predict_step and configure_optimizers. Of what
    training_step logs with self.log(), 0-dim tensors are logged by the trainer. Hooks of the module and manual
    optimization are not called."""
    if getattr(module, "automatic_optimization", True) is False:
        raise _duet.ConfigError("[lightning] found manual optimization; write the loop with duet.graph_step")
    logged: dict[str, Any] = {}
    module.log = lambda name, value, *_, **__: logged.__setitem__(name, value)
    module.log_dict = lambda values, *_, **__: logged.update(values)

    def run(step, batch):
        logged.clear()
        output = step(batch, 0)
        values = {name: value for name, value in logged.items() if hasattr(value, "dim")}
        return output, values

    def loss(module, batch):
        output, values = run(module.training_step, batch)
        return (output["loss"] if isinstance(output, dict) else output), values

    def validate(module, batch):
        output, values = run(module.validation_step, batch)
        if isinstance(output, dict):
            values.update(output)
        elif output is not None:
            values["loss"] = output
        return values

    arguments = {"loss": loss, **_optimizer_of(module.configure_optimizers())}
    if _is_own(module, "validation_step"):
        arguments["validation_step"] = validate
    if hasattr(module, "predict_step"):
        arguments["predict_step"] = lambda module, batch: module.predict_step(batch, 0)
    return Task(module, arguments)


def _is_own(module, method: str) -> bool:
    """Whether the user's class defines it: Lightning's own does nothing."""
    function = getattr(type(module), method, None)
    return function is not None and not function.__module__.startswith(("lightning", "pytorch_lightning"))
