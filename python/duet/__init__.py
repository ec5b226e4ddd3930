"""duet: trains PyTorch models in two modes behind one trainer, with the same bits.

EagerTrainer runs each step op by op; GraphTrainer records the same step (model, loss, backward, clipping, optimizer)
and replays it. graph_step does that for the step of a loop that exists already.
"""

from pathlib import Path as _Path

from _duet_torch import check_torch as _check_torch

_check_torch()

import torch  # noqa: E402, F401  its libraries, before those of duet

from . import _duet, host_numbers  # noqa: F401  what C++ imports must be there before two threads do
from ._duet import *  # noqa: F403  the options, hooks, metrics and errors
from ._duet import __version__
from .data import BucketSampler, pad_to
from .lightning_module import lightning
from .loop import graph_step
from .tasks import hugging_face
from .trainers import EagerTrainer, GraphTrainer, Hook, Metric, make_trainer

cmake_prefix_path = str(_Path(__file__).parent)  # for find_package(duet) in C++
__all__ = [name for name in dir(_duet) if not name.startswith("_")] + [
    "BucketSampler",
    "EagerTrainer",
    "GraphTrainer",
    "Hook",
    "Metric",
    "cmake_prefix_path",
    "graph_step",
    "hugging_face",
    "lightning",
    "make_trainer",
    "pad_to",
]
