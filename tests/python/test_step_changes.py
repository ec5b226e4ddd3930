"""What a loop changes between its steps, noticed at the very step: nothing here relies on a check."""

import collections
import dataclasses
import functools
import types
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as nn_module

import duet
import toy

UNCHECKED = {"check": "off", "verify_interval": 0}


def double_output(module, inputs, output):
    return output * 2


def double_gradient(gradient):
    return gradient * 2


def double_in_place(parameter):
    parameter.grad.mul_(2)


class Double(nn.Module):
    def forward(self, x):
        return x * 2


class DoubleLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


# Each gives what takes it back.
CHANGES = {
    "hook_on_a_weight": lambda m: m.hidden.weight.register_hook(double_gradient).remove,
    "another_hook_on_it": lambda m: m.output.weight.register_hook(double_gradient).remove,
    "hook_after_a_gradient": lambda m: m.hidden.weight.register_post_accumulate_grad_hook(double_in_place).remove,
    "forward_hook": lambda m: m.hidden.register_forward_hook(double_output).remove,
    "forward_pre_hook": lambda m: m.hidden.register_forward_pre_hook(lambda _, x: (x[0] * 2,)).remove,
    "backward_pre_hook": lambda m: m.hidden.register_full_backward_pre_hook(lambda _, g: (g[0] * 2,)).remove,
    "global_hook": lambda m: nn_module.register_module_forward_hook(double_output).remove,
    "function": lambda m: setattr(m.hidden, "forward", lambda x: F.linear(x, m.hidden.weight)),
    "class": lambda m: setattr(m.hidden, "__class__", DoubleLinear),
    "module": lambda m: setattr(m, "drop", Double()),
    "module_and_its_number": lambda m: (setattr(m, "drop", nn.Dropout(0.5)), setattr(m.drop, "p", 0.3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_hook_or_module_that_comes_and_goes(name):
    def run(step, module, optimizer):
        losses, take_back = [], None
        module.output.weight.register_hook(lambda gradient: gradient + 1)
        for i, batch in enumerate(toy.batches(30)):
            if i == 10:
                take_back = CHANGES[name](module)
            if i == 20 and callable(take_back):
                take_back()
            losses.append(step(batch))
        return losses

    step = toy.same_as_loop(run, **UNCHECKED)
    assert sum(report["replays"] for report in step.report()) >= 20, step.report()


class Weighted:
    def __init__(self):
        self.weight = 1.0

    def of(self, value):
        return value * self.weight

    __call__ = of

    @property
    def twice(self):
        return 2 * self.weight


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
    "range": (lambda: {"r": range(1, 3)}, lambda c, y, t: F.mse_loss(y, t) * sum(c["r"]), lambda c: c.update(r=range(2, 4))),
    "users_module": (users_module, lambda c, y, t: F.mse_loss(y, t) * c.weight, heavier),
    "values_of_a_dict": (lambda: {"a": 1.0, "b": 2.0}, lambda c, y, t: F.mse_loss(y, t) * sum(c.values()), lambda c: c.update(b=3.0)),
    "computed_key": (lambda: {"w1": 1.0}, lambda c, y, t: F.mse_loss(y, t) * c[f"w{y.dim() - 1}"], lambda c: c.update(w1=3.0)),
    "number_as_key": (lambda: {0: 1.0}, lambda c, y, t: F.mse_loss(y, t) * c[0], lambda c: c.update({0: 3.0})),
    "dict_in_a_dict": (lambda: {"aux": {"z": 1.0}}, lambda c, y, t: F.mse_loss(y, t) * c["aux"]["z"], lambda c: c["aux"].update(z=3.0)),
    "key_that_comes": (dict, lambda c, y, t: F.mse_loss(y, t) * c.get("w", 1.0), lambda c: c.update(w=3.0)),
    "subclass_of_dict": (collections.OrderedDict, lambda c, y, t: F.mse_loss(y, t) * (1 + sum(c.values())), lambda c: c.update(w=3.0)),
    "large_dict": (lambda: {**{f"word{i}": i for i in range(500)}, "w": 1.0}, lambda c, y, t: F.mse_loss(y, t) * c["w"], lambda c: c.update(w=3.0)),
    "modules_in_a_list": (lambda: [nn.Dropout(0.5)], lambda c, y, t: F.mse_loss(c[0](y), t), lambda c: setattr(c[0], "p", 0.1)),
    "module_in_a_tuple": (lambda: (nn.Dropout(0.5),), lambda c, y, t: F.mse_loss(c[0](y), t), lambda c: c[0].eval()),
    "object_in_a_list": (lambda: [Weighted()], lambda c, y, t: F.mse_loss(y, t) * c[0].weight, lambda c: heavier(c[0])),
    "functions_in_a_list": (lambda: [torch.square, torch.abs], lambda c, y, t: F.mse_loss(c[0](y), t), list.reverse),
    "function_in_a_dict": (lambda: {"f": torch.square}, lambda c, y, t: F.mse_loss(c["f"](y), t), lambda c: c.update(f=torch.abs)),
    "array": (lambda: np.ones(3), lambda c, y, t: F.mse_loss(y, t) * float(c[1]), lambda c: c.fill(3.0)),
    "generator": (lambda: [torch.Generator()], lambda c, y, t: F.mse_loss(y + torch.rand(3, generator=c[0]), t), another_generator),
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

    toy.same_as_loop(run, loss, make_model, **UNCHECKED)


@pytest.mark.parametrize("of_item", [False, True])
def test_an_object_that_comes_is_looked_into(of_item):
    place = {"factor": None} if of_item else types.SimpleNamespace(factor=None)
    held = place if of_item else vars(place)

    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(30)):
            if i in (0, 10):
                held["factor"] = Weighted() if i else None
            if i == 20:
                heavier(held["factor"])
            losses.append(step(batch))
        return losses

    def loss(module, batch):
        factor = place["factor"] if of_item else place.factor
        return toy.loss(module, batch) * (factor.weight if factor is not None else 2.0)

    toy.same_as_loop(run, loss, **UNCHECKED)


HOOKS = {
    "forward": lambda m, s: m.hidden.register_forward_hook(lambda module, args, output: output * s.weight),
    "forward_pre": lambda m, s: m.output.register_forward_pre_hook(lambda module, args: (args[0] * s.weight,)),
    "backward": lambda m, s: m.output.register_full_backward_hook(lambda module, of_inputs, of_outputs: (of_inputs[0] * s.weight,)),
    "tensor": lambda m, s: m.output.weight.register_hook(lambda gradient: gradient * s.weight),
    "object": lambda m, s: m.output.weight.register_hook(s),
}


@pytest.mark.parametrize("since", [0, 5])
@pytest.mark.parametrize("name", HOOKS)
def test_what_hooks_find(name, since):
    def run(step, module, optimizer):
        settings, losses = Weighted(), []
        for i, batch in enumerate(toy.batches(30)):
            if i == since:
                HOOKS[name](module, settings)
            if i == 20:
                heavier(settings)
            losses.append(step(batch))
        return losses

    toy.same_as_loop(run, **UNCHECKED)


class ScaledSgd(torch.optim.SGD):
    weight = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=0.1 * self.weight)


@pytest.mark.parametrize("of_hook", [False, True])
def test_what_an_optimizer_finds(of_hook):
    def run(step, module, optimizer):
        return [(heavier(settings) if i == 20 else None, step(batch))[1] for i, batch in enumerate(toy.batches(30))]

    settings = None

    def make(module):
        nonlocal settings
        optimizer = toy.sgd(module) if of_hook else ScaledSgd(module.parameters())
        settings = Weighted() if of_hook else optimizer

        def scale(own, args, kwargs):
            own.param_groups[0]["params"][0].grad.mul_(settings.weight)

        if of_hook:
            optimizer.register_step_pre_hook(scale)
        return optimizer

    toy.same_as_loop(run, optimizer=make, **UNCHECKED)


def test_a_frozen_parameter_that_thaws_asks_for_a_new_step():
    module = toy.model()
    module.hidden.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters())
    step = duet.graph_step(module, toy.loss, optimizer)
    for batch in toy.batches(5):
        step(batch)
    module.hidden.requires_grad_(True)
    with pytest.raises(duet.ConfigError, match="'hidden.weight' was frozen .* make a new graph_step"):
        step(toy.batches(1)[0])
    before = module.hidden.weight.detach().clone()
    duet.graph_step(module, toy.loss, optimizer)(toy.batches(1)[0])
    assert not torch.equal(before, module.hidden.weight)


def test_gradients_kept_as_arrays():
    def run(step, module, optimizer):
        return [(step(batch), module.hidden.weight.grad.numpy())[1] for batch in toy.batches(12)]

    toy.same_as_loop(lambda *given: [torch.tensor(array) for array in run(*given)])


def test_a_backward_pass_over_weights_that_a_replay_has_changed():
    module = toy.model()
    step = duet.graph_step(module, toy.loss, toy.adam(module))
    for batch in toy.batches(20):
        kept = toy.loss(module, batch)
        step(batch)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.backward()
    assert step.report()[0]["replays"] >= 15


def filled_in_place(x):
    constant = torch.tensor([1.0, 2.0] * 4)
    constant[None].mul_(3)
    constant[1:3] = x.detach()[0, 1:3]
    return x * constant


class Constants:
    factor = 1.0  # of a class: found by a check


def changed_and_other_later(x):
    return x * torch.tensor([Constants.factor] * 8).mul_(2)


def test_a_constant_changed_in_place_that_becomes_another():
    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(90)):
            Constants.factor = 1.0 if i < 40 else 3.0
            losses.append(step(batch))
        return losses

    toy.same_as_loop(run, lambda m, batch: toy.loss(m, {**batch, "x": changed_and_other_later(batch["x"])}))


def test_objects_in_a_dict_that_are_no_tensors():
    def make():
        module = toy.model()
        module.notes = {"weight": weakref.proxy(module.scale), "mock": mock.NonCallableMagicMock(spec=torch.Tensor)}
        return module

    toy.same_as_loop(toy.over(toy.batches(12)), make=make)


CONSTANTS = {
    "view": lambda x: x * torch.tensor([1.0, 2.0] * 4)[None],
    "expanded": lambda x: x - torch.tensor([0.5]).expand(8),
    "part": lambda x: x * torch.tensor([1.0, 2.0, 3.0] * 4)[2:10],
    "one_of_some": lambda x: x * x.new_tensor([1.0, 2.0, 3.0])[1],
    "from_numpy": lambda x: x * torch.from_numpy(np.arange(8, dtype=np.float32))[None],
    "complex": lambda x: (torch.tensor(1 + 2j).conj() * x).real,
    "changed_in_place": filled_in_place,
}


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("options", [{}, UNCHECKED, {"fallback": "strict"}], ids=["default", "unchecked", "strict"])
def test_constants_made_by_the_host_and_views_of_them(name, options):
    def loss(module, batch):
        return toy.loss(module, {**batch, "x": CONSTANTS[name](module.shift(batch["x"]))})

    def make():
        module = toy.model()
        module.shift = nn.Linear(8, 8)
        return module

    report = toy.same_as_loop(toy.over(toy.batches(40)), loss, make, **options).report()
    assert report[0]["replays"] >= 36 and not report[0]["reason"], report


class Sets(nn.Module):
    """Whose code sets numbers of its own."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.calls, self.toggle = nn.Linear(8, 3), how, 0, False

    def forward(self, x):
        if self.how == "in the first step" and not hasattr(self, "scale"):
            self.scale = 0.5
        if self.how == "where the loop has reset them" and self.calls == 0:
            self.calls, self.scale = 1, 2.0
            return 3 * self.layer(x)
        if self.how == "by turns":
            self.toggle = not self.toggle
        if self.how == "at each step":
            self.calls += 1
        return self.layer(x) * getattr(self, "scale", 1.0) * (2.0 if self.toggle else 1.0) + 0.01 * self.calls


@pytest.mark.parametrize("how", ["in the first step", "where the loop has reset them", "by turns", "at each step"])
def test_numbers_that_the_code_of_the_step_sets(how):
    def run(step, module, optimizer):
        losses = []
        for n, batch in enumerate(toy.batches(48)):
            if how == "where the loop has reset them" and n % 12 == 0:
                module.calls = 0
            losses.append(step(batch))
        return losses

    def loss(module, batch):
        return F.cross_entropy(module(batch["x"]), batch["y"])

    def sgd(module):
        return torch.optim.SGD(module.parameters(), lr=0.05)

    reports = toy.same_as_loop(run, loss, lambda: Sets(how), sgd, check="off").report()
    assert (sum(report["unchecked"] for report in reports) > 30) == (how == "in the first step"), reports
