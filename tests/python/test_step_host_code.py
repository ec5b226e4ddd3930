"""What the host code of a step may do: numbers that change, parameters reached by other ways than edges, ops by way of
the host."""

import random
import types

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import duet
import toy
from host_code import Linear, both, cross_entropy


NUMBERS = {
    "times": lambda number, x: x * number,
    "number_times": lambda number, x: number * x,
    "over": lambda number, x: x / number,
    "minus": lambda number, x: number - x,
    "int_times_count": lambda number, x: x * torch.ones(4).long().sum() * int(10 * number),
    "bfloat16": lambda number, x: (x.bfloat16() * number).float(),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("on", ["loss", "parameter"])
def test_a_number_that_changes_stays_a_number(name, on):
    def loss(module, batch, now):
        value = cross_entropy(module, batch, now)
        number = 0.1 + 0.37 / (now["n"] + 1.3)
        scaled = NUMBERS[name](number, value if on == "loss" else module.scalar)
        return scaled if on == "loss" else value + scaled

    report = both(Linear, loss)
    if name != "minus":  # an op whose number is no tensor
        assert toy.replays(report) >= 24, report


class Hidden(nn.Module):
    """Its middle layer is reached by a node of the graph that runs a backward pass of its own."""

    def __init__(self, kind="checkpoint"):
        super().__init__()
        self.kind = kind
        self.first, self.middle, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        if self.kind == "function":
            x = InnerBackward.apply(x, self.middle)
        else:
            keeps = self.kind == "checkpoint_with_random_state"
            x = checkpoint(self.middle, x, use_reentrant=True, preserve_rng_state=keeps)
        return self.last(torch.relu(x))


class InnerBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            ctx.layer(x).backward(gradient)
        return x.grad, None


@pytest.mark.parametrize("part", ["all", "first_and_middle", "middle"])
@pytest.mark.parametrize("kind", ["checkpoint", "checkpoint_with_random_state", "function"])
def test_parameters_that_no_edge_reaches_are_trained(kind, part):
    trained = {
        "all": nn.Module.parameters,
        "first_and_middle": lambda module: [*module.first.parameters(), *module.middle.parameters()],
        "middle": lambda module: module.middle.parameters(),
    }
    report = both(lambda: Hidden(kind), cross_entropy, trained=trained[part])
    assert toy.replays(report) >= 30, report


def test_parameters_that_are_not_trained_keep_the_gradients_they_have():
    module = Hidden("function")
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    step = duet.graph_step(module, lambda m, b: cross_entropy(m, b, None), torch.optim.SGD(module.first.parameters(), 0.1))
    for batch in toy.batches(6):
        step(batch)
    for parameter in [*module.middle.parameters(), *module.last.parameters()]:
        assert torch.equal(parameter.grad, torch.ones_like(parameter))


smoothing = 0.0
settings = types.SimpleNamespace(scale=1.0)


def loss_of_globals(module, batch, now):
    logits = module(batch["x"]) * settings.scale * module.gain
    return F.cross_entropy(logits, batch["y"], label_smoothing=smoothing + now["more"]) + (logits * now["weight"]).mean()


def test_what_a_loop_sets_seldom_is_noticed_at_its_step():
    """Numbers of a module, of an object and of a closure; a tensor that is replaced, and one whose memory is."""

    def before(n, module, now, batch):
        global smoothing
        smoothing = 0.01 * (n // 1300)
        settings.scale = 1 + 0.1 * (n // 1500)
        module.gain = 1 + 0.1 * (n // 1600)
        now["more"] = 0.01 * (n // 1700)
        if n % 1400 == 0:
            now["weight"] = torch.rand(3, generator=torch.Generator().manual_seed(n)) + 0.5
        if n == 2000:
            now["weight"].data = torch.tensor([0.2, 0.3, 0.5])

    report = both(Linear, loss_of_globals, 3000, before)
    assert toy.replays(report) >= 2900, report


def times(number):
    return lambda x: x * number


def test_functions_in_the_place_of_ones_that_are_gone():
    class Called(Linear):
        def forward(self, x):
            return self.function(self.layer(x))

    def before(n, module, now, batch):
        if n % 10 == 0:
            module.function = None  # so that the next one may lie where it lay
            module.function = times(1 + 0.1 * (n // 10))

    both(Called, cross_entropy, 400, before, check="off")


class Labels(torch.Tensor):
    """What vision libraries give: a tensor that knows what it is."""


def with_an_attribute(x):
    x.scale = 2.0
    return x


LENT = {
    "as_strided": (lambda x: torch.cat([x, x * 2])[6:18], lambda x: x.as_strided((12, 8), (8, 1), 0)),
    "as_strided_beyond": (lambda x: torch.cat([x, x * 2])[:12], lambda x: x.as_strided((12, 8), (9, 1))),
    "set": (
        lambda x: torch.cat([x, x * 2])[6:18],
        lambda x: torch.empty(0).set_(x.untyped_storage(), 0, (12, 8), (8, 1)),
    ),
    "subclass": (lambda x: x.as_subclass(Labels), lambda x: x * 2 if isinstance(x, Labels) else x),
    "attribute": (with_an_attribute, lambda x: x * getattr(x, "scale", 1.0)),
}


@pytest.mark.parametrize("name", LENT)
def test_a_step_sees_of_a_batch_what_the_loop_sees(name):
    make, use = LENT[name]

    def before(n, module, now, batch):
        batch["x"] = make(batch["x"])

    both(Linear, lambda module, batch, now: F.cross_entropy(module(torch.Tensor(use(batch["x"]))), batch["y"]), 20, before)


def test_what_a_loop_counts_beside_a_number_that_matters_costs_no_replay():
    def before(n, module, now, batch):  # n itself is in `now`, too
        now["w"] = 2.0 if n in (40, 41) else 1.0

    def loss(module, batch, now):
        return cross_entropy(module, batch, now) * sum(now[key] for key in ("w",))

    report = both(Linear, loss, 60, before, check="off", verify_interval=0)
    assert sum(entry["unchecked"] for entry in report) > 40, report


def test_a_schedule_that_has_come_to_its_end_costs_no_replay():
    def before(n, module, now, batch):
        module.weight = min(n, 40) / 40 + (n == 900)

    def loss(module, batch, now):
        return cross_entropy(module, batch, now) * module.weight

    report = both(Linear, loss, 1000, before, check="off", verify_interval=0)
    assert 500 < sum(entry["unchecked"] for entry in report) < 700, report


class Draws(Linear):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def forward(self, x):
        return self.layer(x) * (2 if self.generator.random() < 0.1 else 1)


@pytest.mark.parametrize("make", [random.Random, numpy.random.default_rng, numpy.random.RandomState])
def test_a_generator_of_the_models_own_moves_as_in_the_loop(make):
    both(lambda: Draws(make(3)), cross_entropy, 60, check="off", verify_interval=0)


def test_numbers_are_told_apart_by_type_and_bits():
    def before(n, module, now, batch):
        global smoothing
        smoothing = [0.0, -0.0, -1, -2, 1, 1.0, True][n // 40]

    def loss(module, batch, now):
        return F.cross_entropy(module(batch["x"]), batch["y"]) + torch.full((3,), smoothing, dtype=torch.float32).softmax(0)[0]

    report = both(Linear, loss, 280, before)
    assert sum(entry["differing"] for entry in report) == 0, report


class Hostile:
    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)


hostile = Hostile()


def test_objects_that_answer_no_question_are_left_alone():
    both(Linear, lambda module, batch, now: cross_entropy(module, batch, now) if hostile is not None else None, 6)


class Keeps(toy.Net):
    def forward(self, x):
        self.kept = torch.tanh(self.hidden(x))
        return self.output(self.kept)


class Halves(duet.Hook):
    def __init__(self, model):
        self.model, self.sum, self.seen = model, torch.zeros(()), []

    def after_backward(self, run):
        with torch.no_grad():
            self.model.kept.mul_(0.5)
        self.seen.append(self.model.kept.sum().item())

    def in_step(self, view):
        self.sum.add_(self.model.kept.detach().mean())


@pytest.mark.parametrize("check", ["every", "budget", "off"])
def test_hooks_between_kernels_change_what_the_model_keeps(check):
    outcomes = []
    for mode, options in (("eager", {}), ("graph", {"check": check})):
        torch.manual_seed(0)
        model = Keeps()
        hook = Halves(model)
        trainer = duet.make_trainer(mode, model, toy.loss, hooks=[hook], default_hooks=False, **options)
        for batch in toy.batches(20):
            trainer.step(batch)
        outcomes.append((hook.seen, hook.sum, model.state_dict()))
    toy.assert_same_bits(*outcomes)
