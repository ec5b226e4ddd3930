"""What a loop changes between its steps, noticed at the very step: nothing here relies on a check."""

import random
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

    step = toy.same_as_loop(run, **toy.UNCHECKED)
    assert sum(report["replays"] for report in step.report()) >= 20, step.report()


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


def test_numbers_of_the_optimizer_that_the_loss_reads():
    used = []

    def make(module):
        used[:] = [toy.sgd(module)]
        return used[0]

    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(30)):
            used[0].param_groups[0]["lr"] = 0.1 if i < 15 else 0.01
            losses.append(step(batch))
        return losses

    def loss(module, batch):
        return toy.loss(module, batch) + used[0].param_groups[0]["lr"] * module.output.weight.square().sum()

    toy.same_as_loop(run, loss, optimizer=make, **toy.UNCHECKED)


def test_another_network_that_is_frozen_is_another_step():
    other = nn.Linear(3, 3)

    def run(step, module, optimizer):
        return [(other.requires_grad_(i < 15), step(batch))[1] for i, batch in enumerate(toy.batches(30))]

    step = toy.same_as_loop(run, lambda module, batch: other(module(batch["x"])).square().mean(), **toy.UNCHECKED)
    assert len(step.report()) == 2 and toy.replays(step.report()) == 30 - 2 * 2


def test_what_a_step_keeps_from_its_first_steps_on_costs_no_replay():
    kept, records = {}, [types.SimpleNamespace(step=0)]

    def loss(module, batch):
        length = len(records) // 20  # of what a cache grows by
        kept.setdefault(length, torch.full((3,), 1.0 + length))
        records.append(types.SimpleNamespace(step=len(records)))
        return toy.loss(module, batch) * kept[0].sum()

    step = toy.same_as_loop(lambda step, module, optimizer: [step(batch) for batch in toy.batches(90)], loss)
    assert len(step.report()) == 1, step.report()


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
@pytest.mark.parametrize("options", [{}, toy.UNCHECKED, {"fallback": "strict"}], ids=["default", "unchecked", "strict"])
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


@pytest.mark.parametrize("read", ["current_epoch", "rng"])
def test_numbers_that_a_step_of_lightning_finds(read):
    class Numbers(pytest.importorskip("lightning").LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.rng = toy.model(), random.Random(1)

        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self.net(batch["x"]), batch["y"])
            self.log("loss", loss)
            return loss * (3 if (self.current_epoch == 2 if read == "current_epoch" else self.rng.random() < 0.1) else 1)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self.net(batch["x"]), batch["y"]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    weights = []
    for mode in ("eager", "graph"):
        torch.manual_seed(0)
        trainer = duet.make_trainer(
            mode, duet.lightning(Numbers()), default_hooks=False, max_epochs=4, check="off", verify_interval=0)  # fmt: skip
        trainer.fit(toy.batches(10), toy.batches(2))
        weights.append(trainer.model.state_dict())
    toy.assert_same_bits(*weights)
    assert read == "rng" or len([entry for entry in trainer.report() if entry["kind"] == "step"]) == 4


def test_norms_of_steps_that_may_be_skipped_cost_no_replay():
    trainer = duet.GraphTrainer(toy.model(), toy.loss, default_hooks=False, max_steps=30, non_finite="skip", **toy.UNCHECKED)
    trainer.fit(toy.batches(30))
    assert [entry["unchecked"] for entry in trainer.report()] == [28]
