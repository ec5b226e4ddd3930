"""Models of other libraries as tasks: what a trainer needs of them, in one object."""

import dataclasses
from typing import Any, Callable

from . import _duet


@dataclasses.dataclass(frozen=True)
class Task:
    model: Any
    arguments: Callable[[dict[str, Any]], dict[str, Any]]  # of a trainer that has these options


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
        lambda options: {
            "loss": lambda model, batch: model(**batch).loss,
            "validation_step": validate,
            "predict_step": predict,
            "weight": weight,
        },
    )
