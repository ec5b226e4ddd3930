"""duet: trains PyTorch models in two modes behind one trainer, with the same bits.

EagerTrainer runs each step op by op; GraphTrainer records the same step (model, loss, backward, clipping, optimizer)
and replays it. graph_step does that for the step of a loop that exists already.
"""

import torch

from ._torch_version import built_for_torch as _built_for_torch

if torch.__version__.split(".")[:2] != _built_for_torch.split(".")[:2]:
    raise ImportError(
        f"[duet] this duet was built for torch {_built_for_torch}, and torch {torch.__version__} is installed; "
        "install duet again (pip install --force-reinstall --no-deps), which builds it for the torch that is there"
    )

from . import _duet
from ._duet import *  # noqa: F403  the options, hooks, metrics and errors
from ._duet import __version__
from .data import BucketSampler, pad_to
from .lightning_module import lightning
from .loop import graph_step
from .tasks import hugging_face
from .trainers import EagerTrainer, GraphTrainer, Hook, Metric, make_trainer

__all__ = [name for name in dir(_duet) if not name.startswith("_")] + [
    "BucketSampler",
    "EagerTrainer",
    "GraphTrainer",
    "Hook",
    "Metric",
    "graph_step",
    "hugging_face",
    "lightning",
    "make_trainer",
    "pad_to",
]
