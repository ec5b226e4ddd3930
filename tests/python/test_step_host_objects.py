"""What a loop sets or changes in objects that the code of a step reads is noticed at its step, whatever holds it."""

import collections
import datetime
import enum
import functools
import gc
import types

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import toy
from host_code import Linear, both, cross_entropy


class Word(enum.StrEnum):
    A, B = "a", "b"


class Choice(enum.Enum):
    A, B = 1, 2


Pair = collections.namedtuple("Pair", "choice more")
CONSTANTS = {
    "str_enum": (Word.A, Word.B),
    "enum": (Choice.A, Choice.B),
    "named_tuple": (Pair(1, 0), Pair(2, 0)),
    "tuple_of_enums": ((Choice.A,), (Choice.B,)),
    "numpy_float": (numpy.float32(1), numpy.float32(2)),
    "numpy_bool": (numpy.bool_(False), numpy.bool_(True)),
    "numpy_text": (numpy.str_("a"), numpy.str_("b")),
    "dtype": (torch.float32, torch.float64),
    "device": (torch.device("cpu"), torch.device("meta")),
    "bytes": (b"a", b"b"),
    "nested_tuple": (((1, 2), 3), ((1, 4), 3)),
    "complex": (1j, 2j),
    "timedelta": (datetime.timedelta(1), datetime.timedelta(2)),
}


class Chosen(Linear):
    def __init__(self, choices):
        super().__init__()
        self.choices, self.choice = choices, choices[0]

    def forward(self, x):
        return self.layer(x) * (1 + (self.choice == self.choices[1]))


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_a_loop_sets_are_noticed_at_their_step(name):
    def before(n, module, now, batch):
        if n == 20:
            module.choice = module.choices[1]

    both(lambda: Chosen(CONSTANTS[name]), cross_entropy, 40, before, check="off")


class Counts(Linear):
    def __init__(self, kind):
        super().__init__()
        self.chosen, self.gathered, self.in_itself = kind([1]), collections.deque(maxlen=3), collections.deque()
        self.in_itself.append([self.in_itself])

    def forward(self, x):
        self.gathered.append(x)
        return self.layer(x) * len(self.chosen)


@pytest.mark.parametrize("kind, put_in", [(set, set.add), (collections.deque, collections.deque.append)])
def test_what_a_loop_puts_into_sets_and_deques_is_noticed_at_its_step(kind, put_in):
    def before(n, module, now, batch):
        if n == 20:
            put_in(module.chosen, 2)

    report = both(lambda: Counts(kind), cross_entropy, 40, before, check="off")
    assert toy.replays(report) >= 30, report


def keyword_default():
    def weight(*, value=1.0):
        return value

    return weight


HELD = {  # made, read, changed
    "user_dict": (lambda: collections.UserDict(weight=1.0), lambda held: held["weight"], lambda held: held.update(weight=2.0)),
    "chain_map": (lambda: collections.ChainMap({"weight": 1.0}), lambda held: held["weight"], lambda held: held.update(weight=2.0)),
    "mapping": (lambda: types.MappingProxyType({"weight": 1.0}), lambda held: held["weight"], lambda held: gc.get_referents(held)[0].update(weight=2.0)),
    "partial": (lambda: functools.partial(dict, weight=1.0), lambda held: held()["weight"], lambda held: held.keywords.update(weight=2.0)),
    "deque": (lambda: collections.deque([types.SimpleNamespace(scale=1.0)]), lambda held: held[0].scale, lambda held: setattr(held[0], "scale", 2.0)),
    "keyword_default": (keyword_default, lambda held: held(), lambda held: held.__kwdefaults__.update(value=2.0)),
}


class Holds(Linear):
    def __init__(self, name):
        super().__init__()
        make, self.read, self.change = HELD[name]
        self.held = make()

    def forward(self, x):
        return self.layer(x) * self.read(self.held)


@pytest.mark.parametrize("name", HELD)
def test_what_a_loop_changes_in_objects_of_libraries_is_noticed_at_its_step(name):
    def before(n, module, now, batch):
        if n == 20:
            module.change(module.held)

    report = both(lambda: Holds(name), cross_entropy, 40, before, check="off")
    assert toy.replays(report) >= 30, report


def new_weight(module):
    module.layer.weight = nn.Parameter(torch.full((3, 8), 0.5))


def no_bias(module):
    module.layer.bias = None


def list_of_torchs_layer(module):
    module.pool.kernel_size = [2]


def another_name(module):
    del module.conv.old_name
    module.conv.new_name = 1


def weights_of_classes(module):
    module.criterion.weight = torch.tensor([1.0, 2.0, 3.0])


def dilation(module):
    module.conv.dilation = module.conv.padding = (2,)


class Replaceable(Linear):
    def __init__(self):
        super().__init__()
        self.conv, self.criterion = nn.Conv1d(1, 1, 3, padding=1), nn.CrossEntropyLoss()
        self.conv.old_name = 1
        self.pool = nn.AvgPool1d(3, 1, 1)
        self.pool.kernel_size, self.pool.padding = [3], [1]

    def forward(self, x):
        x = self.pool(self.conv(x[:, None])) * (1 + hasattr(self.conv, "new_name"))
        return self.layer(F.pad(x[:, 0], (0, 8))[:, :8])


@pytest.mark.parametrize("change", [new_weight, no_bias, weights_of_classes, dilation, list_of_torchs_layer, another_name])
def test_what_a_loop_replaces_in_torchs_layers_is_noticed_at_its_step(change):
    def before(n, module, now, batch):
        if n == 20:
            change(module)

    def loss(module, batch, now):
        return module.criterion(module(batch["x"]), batch["y"])

    both(Replaceable, loss, 40, before, check="off")
