"""Numbers and objects that the code of a step reads, changed between its steps: noticed at the very step."""

import collections
import dataclasses
import enum
import functools
import random
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as nn_module

import duet
import toy



class Weighted:
    __match_args__ = None  # as good as none

    def __init__(self):
        self.weight = 1.0

    def of(self, value):
        return value * self.weight

    __call__ = of

    @property
    def twice(self):
        return 2 * self.weight


class Mean:
    def of(self, value):
        return value.square().mean()


class Largest:
    def of(self, value):
        return value.square().max()


@dataclasses.dataclass(slots=True)
class Slotted:
    weight: float


class SlottedList(list):
    __slots__ = ("weight",)

    def __init__(self):
        super().__init__([1.0])
        self.weight = 1.0


class Hidden(Slotted):
    def __init__(self):
        self.own = 1.0

    weight = property(lambda self: float(f"{self.own}"), lambda self, value: setattr(self, "own", value))


def users_module():
    module = types.ModuleType("settings_of_a_user")
    module.weight = 1.0
    return module


def with_an_import(c, y, t):
    import settings_of_a_user as settings

    return F.mse_loss(y, t) * settings.weight


def heavier(thing):
    thing.weight = 3.0


class Cached:
    own = 1.0

    @functools.cached_property
    def weight(self):
        return self.own


def heavier_again(cached):
    cached.own = 3.0
    del cached.weight


class Scale(torch.autograd.Function):
    weight = 1.0

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * Scale.weight


def function_with_weight():
    def function(value):
        return value * function.weight

    function.weight = 1.0
    return function


class OfClass(type):
    weight = property(lambda cls: cls.own)


class Level(enum.Enum):
    ONE = 1

    @property
    def weight(self):
        return self.table[0]


def by_pattern(thing, loss):
    match thing:
        case Weighted(weight=number) | Slotted(number):
            return loss * number


def another_generator(generators):
    generators[0] = torch.Generator().manual_seed(5)


CRITERIA = {
    "method_of_an_object": (Weighted, lambda c, y, t: c.of(F.mse_loss(y, t)), lambda c: setattr(c, "weight", 3.0)),
    "number_of_a_module": (nn.SmoothL1Loss, lambda c, y, t: c(y, t), lambda c: setattr(c, "beta", 0.1)),
    "training_flag": (lambda: nn.Dropout(0.5), lambda c, y, t: F.mse_loss(c(y), t), lambda c: c.eval()),
    "class_attribute": (lambda: type("Settings", (), {"weight": 1.0}), lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier),
    "attribute_of_its_class": (lambda: type("Settings", (), {"weight": 1.0})(), lambda c, y, t: F.mse_loss(y, t) * c.weight, lambda c: heavier(type(c))),
    "slot": (lambda: Slotted(1.0), lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier),
    "slot_of_a_list": (SlottedList, lambda c, y, t: F.mse_loss(y, t) * (c.weight + c[0]), heavier),
    "property_over_a_slot": (Hidden, lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier),
    "property": (Weighted, lambda c, y, t: F.mse_loss(y, t) * c.twice, heavier),
    "call": (Weighted, lambda c, y, t: c(F.mse_loss(y, t)), heavier),
    "cached_property": (Cached, lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier_again),
    "autograd_function": (lambda: setattr(Scale, "weight", 1.0) or Scale, lambda c, y, t: c.apply(F.mse_loss(y, t)), lambda c: heavier(Scale)),
    "attribute_of_a_function": (function_with_weight, lambda c, y, t: c(F.mse_loss(y, t)), heavier),
    "range": (lambda: {"r": range(-1, 2)}, lambda c, y, t: F.mse_loss(y, t) * sum(c["r"]), lambda c: c.update(r=range(-2, 1))),
    "slice": (lambda: {"s": slice(1, 2)}, lambda c, y, t: F.mse_loss(y, t) * c["s"].start, lambda c: c.update(s=slice(3, 4))),
    "imported_module": (lambda: sys.modules.update(settings_of_a_user=users_module()), with_an_import, lambda c: heavier(sys.modules["settings_of_a_user"])),
    "users_module": (users_module, lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier),
    "values_of_a_dict": (lambda: {"a": 1.0, "b": 2.0}, lambda c, y, t: F.mse_loss(y, t) * sum(c.values()), lambda c: c.update(b=3.0)),
    "computed_key": (lambda: {"w1": 1.0}, lambda c, y, t: F.mse_loss(y, t) * c[f"w{y.dim() - 1}"], lambda c: c.update(w1=3.0)),
    "number_as_key": (lambda: {0: 1.0}, lambda c, y, t: F.mse_loss(y, t) * c[0], lambda c: c.update({0: 3.0})),
    "dict_in_a_dict": (lambda: {"aux": {"z": 1.0}}, lambda c, y, t: F.mse_loss(y, t) * c["aux"]["z"], lambda c: c["aux"].update(z=3.0)),
    "key_that_comes": (dict, lambda c, y, t: F.mse_loss(y, t) * c.get("w", 1.0), lambda c: c.update(w=3.0)),
    "subclass_of_dict": (collections.OrderedDict, lambda c, y, t: F.mse_loss(y, t) * (1 + sum(c.values())), lambda c: c.update(w=3.0)),
    "tensors_that_come": (dict, lambda c, y, t: F.mse_loss(y, t) + (c["w"].sum() if "w" in c else 0), lambda c: c.update(w=torch.ones(3))),
    "object_more": (lambda: [Weighted()], lambda c, y, t: F.mse_loss(y, t) * sum(w.weight for w in c), lambda c: c.append(Weighted())),
    "pattern_with_keywords": (Weighted, lambda c, y, t: by_pattern(c, F.mse_loss(y, t)), heavier),
    "pattern_by_position": (lambda: Slotted(1.0), lambda c, y, t: by_pattern(c, F.mse_loss(y, t)), heavier),
    "attribute_of_a_metaclass": (lambda: setattr(OfClass, "scale", 1.0) or OfClass("Settings", (), {}), lambda c, y, t: F.mse_loss(y, t) * c.scale, lambda c: setattr(OfClass, "scale", 3.0)),
    "property_of_an_enum": (lambda: setattr(Level, "table", [1.0]) or [Level.ONE], lambda c, y, t: F.mse_loss(y, t) * c[0].weight, lambda c: c[0].table.insert(0, 3.0)),
    "property_of_a_metaclass": (lambda: OfClass("Settings", (), {"own": 1.0}), lambda c, y, t: F.mse_loss(y, t) * c.weight, lambda c: setattr(c, "own", 3.0)),
    "large_integers": (lambda: [1 << 64], lambda c, y, t: F.mse_loss(y, t) * (c[0] % 65521), lambda c: c.__setitem__(0, 1 << 125)),
    "large_dict": (lambda: {**{f"word{i}": i for i in range(500)}, "w": 1.0}, lambda c, y, t: F.mse_loss(y, t) * c["w"], lambda c: c.update(w=3.0)),
    "modules_in_a_list": (lambda: [nn.Dropout(0.5)], lambda c, y, t: F.mse_loss(c[0](y), t), lambda c: setattr(c[0], "p", 0.1)),
    "module_in_a_tuple": (lambda: (nn.Dropout(0.5),), lambda c, y, t: F.mse_loss(c[0](y), t), lambda c: c[0].eval()),
    "object_in_a_list": (lambda: [Weighted()], lambda c, y, t: F.mse_loss(y, t) * c[0].weight, lambda c: heavier(c[0])),
    "functions_in_a_list": (lambda: [torch.square, torch.abs], lambda c, y, t: F.mse_loss(c[0](y), t), list.reverse),
    "function_in_a_dict": (lambda: {"f": torch.square}, lambda c, y, t: F.mse_loss(c["f"](y), t), lambda c: c.update(f=torch.abs)),
    "array": (lambda: np.ones(3), lambda c, y, t: F.mse_loss(y, t) * float(c[1]), lambda c: c.fill(3.0)),
    "generator": (lambda: [torch.Generator()], lambda c, y, t: F.mse_loss(y + torch.rand(3, generator=c[0]), t), another_generator),
    "object_without_numbers": (
        lambda: types.SimpleNamespace(by=Mean()),
        lambda c, y, t: c.by.of(y - t),
        lambda c: setattr(c, "by", Largest()),
    ),
    "many_numbers": (
        lambda: {i: {j: 0.01 for j in range(50)} for i in range(50)},
        lambda c, y, t: F.mse_loss(y, t) * sum(sum(part.values()) for part in c.values()),
        lambda c: c[49].update({49: 3.0}),
    ),
    "more_than_is_looked_at": (
        lambda: [[Weighted() for _ in range(64)] for _ in range(64)],
        lambda c, y, t: F.mse_loss(y, t) * sum(w.weight for row in c for w in row) / 4096,
        lambda c: setattr(c[63][63], "weight", 4096.0),
    ),
}


@pytest.mark.parametrize("name", CRITERIA)
def test_what_the_loss_finds_in_its_closure(name):
    make, loss_of, change = CRITERIA[name]
    criterion = None

    def make_model():
        nonlocal criterion
        criterion = make()
        return toy.model()

    def run(step, module, optimizer):
        return [(change(criterion) if i == 15 else None, step(batch))[1] for i, batch in enumerate(toy.batches(30))]

    def loss(module, batch):
        return loss_of(criterion, module(batch["x"]), F.one_hot(batch["y"], 3).float())

    toy.same_as_loop(run, loss, make_model, **toy.UNCHECKED)


@pytest.mark.parametrize("holder", [lambda module: module, lambda module: module.hidden], ids=["model", "layer_of_torch"])
def test_an_object_of_the_model_that_is_replaced(holder):
    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(30)):
            holder(module).criterion = Mean() if i < 15 else Largest()
            losses.append(step(batch))
        return losses

    toy.same_as_loop(run, lambda module, batch: holder(module).criterion.of(module(batch["x"])), **toy.UNCHECKED)


@pytest.mark.parametrize("place", [types.SimpleNamespace(factor=None), {"factor": None}, {"other": 1}], ids=["attribute", "item", "key"])
def test_an_object_that_comes_is_looked_into(place):
    of_item = type(place) is dict
    held = place if of_item else vars(place)

    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(30)):
            if i == 0 and held.get("factor") is not None:
                held.pop("factor") if "other" in held else held.update(factor=None)
            if i == 10:
                held["factor"] = Weighted()
            if i == 20:
                heavier(held["factor"])
            losses.append(step(batch))
        return losses

    def loss(module, batch):
        factor = place.get("factor") if of_item else place.factor
        return toy.loss(module, batch) * (factor.weight if factor is not None else 2.0)

    toy.same_as_loop(run, loss, **toy.UNCHECKED)


class ScalingModule(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def forward(self, module, args, output):
        return output * self.settings.weight


HOOKS = {
    "forward": lambda m, s: m.hidden.register_forward_hook(lambda module, args, output: output * s.weight),
    "forward_pre": lambda m, s: m.output.register_forward_pre_hook(lambda module, args: (args[0] * s.weight,)),
    "backward": lambda m, s: m.output.register_full_backward_hook(lambda module, of_inputs, of_outputs: (of_inputs[0] * s.weight,)),
    "tensor": lambda m, s: m.output.weight.register_hook(lambda gradient: gradient * s.weight),
    "object": lambda m, s: m.output.weight.register_hook(s),
    "module": lambda m, s: m.hidden.register_forward_hook(ScalingModule(s)),
    "of_all_modules": lambda m, s: nn_module.register_module_forward_hook(lambda module, args, output: output * s.weight),
}


@pytest.mark.parametrize("since", [0, 5])
@pytest.mark.parametrize("name", HOOKS)
def test_what_hooks_find(name, since):
    def run(step, module, optimizer):
        settings, losses = Weighted(), []
        for i, batch in enumerate(toy.batches(30)):
            if i == since:
                handle = HOOKS[name](module, settings)
            if i == 20:
                heavier(settings)
            losses.append(step(batch))
        handle.remove()
        return losses

    toy.same_as_loop(run, **toy.UNCHECKED)


class ScaledSgd(torch.optim.SGD):
    weight = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1 * self.weight)


@pytest.mark.parametrize("with_schedule", [False, True])
@pytest.mark.parametrize("of_hook", [False, True])
def test_what_an_optimizer_finds(of_hook, with_schedule):
    def run(step, module, optimizer):
        return [(heavier(settings) if i == 20 else None, step(batch))[1] for i, batch in enumerate(toy.batches(30))]

    settings = schedule = None

    def make(module):
        nonlocal settings, schedule
        optimizer = toy.sgd(module) if of_hook else ScaledSgd(module.parameters())
        settings = Weighted() if of_hook else optimizer

        def scale(own, args, kwargs):
            own.param_groups[0]["params"][0].grad.mul_(settings.weight)

        if of_hook:
            optimizer.register_step_pre_hook(scale)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1) if with_schedule else None  # it wraps step()
        return optimizer

    toy.same_as_loop(run, optimizer=make, **toy.UNCHECKED)


def trained(mode, loss, run, **options):
    """What `run` gives of a trainer whose host code no check looks at."""
    torch.manual_seed(3)
    random.seed(3)
    module = toy.model()
    trainer = duet.make_trainer(mode, module, loss, default_hooks=False, max_steps=30, **toy.UNCHECKED, **options)
    return run(trainer, module), module.state_dict()


def both_are_alike(loss, run, **options):
    toy.assert_same_bits(*(trained(mode, loss, run, **{k: v() for k, v in options.items()}) for mode in ("eager", "graph")))


def test_the_progress_of_a_trainer():
    trainers = []

    def loss(module, batch):
        return toy.loss(module, batch) * (1.0 if trainers[-1].progress.step < 15 else 3.0)

    both_are_alike(loss, lambda trainer, module: (trainers.append(trainer), trainer.fit(toy.batches(30)))[1])


class Teacher(duet.Hook):
    def __init__(self):
        self.average, self.momentum = torch.zeros(3), 0.5

    def before_train_iter(self, run):
        self.momentum = 0.5 if run.progress.step < 15 else 0.9

    def in_step(self, view):
        self.average.mul_(self.momentum).add_(view.parameters["output.bias"], alpha=1 - self.momentum)


@pytest.mark.parametrize("later", [False, True])
def test_numbers_of_a_hook_within_the_step(later):
    def run(trainer, module):
        if later:
            hooks.append(Teacher())
            trainer.add_hook(hooks[-1])
        trainer.fit(toy.batches(30))
        return hooks[-1].average

    def listed():
        hooks.append(Teacher())
        return hooks[-1:]

    hooks = []
    both_are_alike(toy.loss, run, **({} if later else {"hooks": listed}))


def test_steps_and_predictions_by_turns():
    def forward(module, batch):
        return module(batch["x"]) / module.temperature

    def run(trainer, module):
        predicted = []
        for i, batch in enumerate(toy.batches(30)):
            module.temperature = 1.0 if i < 15 else 4.0
            predicted.append(trainer.predict(batch)["prediction"].clone())
            trainer.step(batch)
        if trainer.mode == "graph":
            assert sum(entry["replays"] - entry["checked"] for entry in trainer.report()) > 30, trainer.report()
        return predicted

    both_are_alike(lambda y, batch: F.cross_entropy(y, batch["y"]), run, forward=lambda: forward)


def test_random_numbers_that_predictions_draw():
    def predict(module, batch):
        random.random()
        return module(batch["x"])

    def run(trainer, module):
        return [trainer.predict(batch) for batch in toy.batches(30)] + [random.random()]

    both_are_alike(toy.loss, run, predict_step=lambda: predict)
