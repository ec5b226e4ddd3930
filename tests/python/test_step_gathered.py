"""What a loop puts into lists, binds anew, or makes reachable later, and what code finds by names that it computes: noticed at
the very step, without checks. What the step itself gathers, and what a loop moves all the time, costs no replay."""

import argparse
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import duet
import toy

CHANGED = 20  # of 30 steps


def anchors():
    tasks = []

    def loss(module, batch):
        old = sum(((new - old) ** 2).sum() for kept in tasks for new, old in zip(module.parameters(), kept))
        return toy.loss(module, batch) + old

    return loss, lambda module: tasks.append([torch.zeros_like(p) for p in module.parameters()])


def memory():
    kept = []

    def loss(module, batch):
        return toy.loss(module, batch) + (toy.loss(module, kept[-1]) if kept else 0.0)

    return loss, lambda module: kept.append(toy.batches(40)[-1])


def history():
    values = []
    return lambda module, batch: toy.loss(module, batch) * (0.5 if len(values) > 0 else 1.0), lambda module: values.append(1.0)


def terms():
    more = []

    def loss(module, batch):
        return toy.loss(module, batch) + sum(term(module) for term in more)

    return loss, lambda module: more.append(lambda module: module.output.weight.square().sum())


def emptied():
    values = [1.0]
    return lambda module, batch: toy.loss(module, batch) * (1.0 if values else 0.5), lambda module: values.clear()


def long_list():
    rates = [1.0] * 70

    def change(module):
        nonlocal rates
        rates = [0.5] * 70

    return lambda module, batch: toy.loss(module, batch) * rates[3], change


def weights_in_a_cell():
    made = [torch.ones(3), torch.tensor([1.0, 2.0, 3.0])]
    weight = made[0]

    def change(module):
        nonlocal weight
        weight = made[1]

    return lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=weight), change


def weights_in_a_dict():
    now, before = {"weight": torch.ones(3)}, []

    def change(module):
        before.append(now["weight"])
        now["weight"] = torch.tensor([1.0, 2.0, 3.0])

    return lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=now["weight"]), change


def weights_in_a_list():
    now, before = [torch.ones(3)], []

    def change(module):
        before.append(now[0])
        now[0] = torch.tensor([1.0, 2.0, 3.0])

    return lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=now[0]), change


def weights_of_an_object():
    now, before = types.SimpleNamespace(weight=torch.ones(3)), []

    def change(module):
        before.append(now.weight)
        now.weight = torch.tensor([1.0, 2.0, 3.0])

    return lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=now.weight), change


class Losses:
    def __init__(self, kind):
        self.kind, self.scale, self.settings = kind, 1.0, {"a_weight": 1.0}

    def by_prefix(self, module, batch):
        return getattr(self, "loss_" + self.kind)(module, batch)

    def by_suffix(self, module, batch):
        return getattr(self, f"{self.kind}_loss")(module, batch)

    def by_percent(self, module, batch):
        return getattr(self, "loss_%s" % self.kind)(module, batch)

    def by_format(self, module, batch):
        return getattr(self, "loss_{}".format(self.kind))(module, batch)

    def by_text(self, module, batch):
        return getattr(self, self.kind)(module, batch)

    def loss_a(self, module, batch):
        return toy.loss(module, batch) * self.scale

    a_loss = loss_a
    of_text = loss_a


def computed_name(kind, method):
    def make():
        losses = Losses(kind)
        return getattr(losses, method), lambda module: setattr(losses, "scale", 0.5)

    return make


def computed_attribute():
    config, kinds = types.SimpleNamespace(a_weight=1.0, b_weight=0.1), ["a", "b"]

    def loss(module, batch):
        return toy.loss(module, batch) * sum(getattr(config, f"{kind}_weight") for kind in kinds)

    return loss, lambda module: setattr(config, "b_weight", 2.0)


def late_attribute():
    args = argparse.Namespace(weight=1.0)

    def loss(module, batch):
        return toy.loss(module, batch) * args.weight + getattr(args, "extra", 0.0) * module.output.weight.square().sum()

    return loss, lambda module: setattr(args, "extra", 1.0)


def late_attribute_of_the_model():
    def loss(module, batch):
        scale = module.late if hasattr(module, "late") else 1.0
        return toy.loss(module, batch) * scale

    return loss, lambda module: setattr(module, "late", 0.5)


def swapped():
    a, b = types.SimpleNamespace(weight=torch.ones(3)), types.SimpleNamespace(weight=torch.tensor([1.0, 2.0, 3.0]))

    def change(module):
        a.weight, b.weight = b.weight, a.weight

    return lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=a.weight) + b.weight[0], change


def beside_one_that_moves():
    still, moving = types.SimpleNamespace(weight=torch.ones(3)), types.SimpleNamespace(weight=torch.zeros(3))
    kept = still.weight

    def loss(module, batch):
        return F.cross_entropy(module(batch["x"]), batch["y"], weight=still.weight) + (0 if module is not None else moving.weight)

    def change(module):
        still.weight = kept * 2

    return loss, change, lambda: setattr(moving, "weight", torch.zeros(3)), (CHANGED,)


def late_container():
    args = argparse.Namespace(more=None)
    inside = types.SimpleNamespace(scale=2.0)

    def loss(module, batch):
        return toy.loss(module, batch) * (1.0 if args.more is None else args.more[0].scale)

    def change(module):
        if args.more is None:
            args.more = [inside]
        else:
            inside.scale = 5.0

    return loss, change, lambda: None, (10, CHANGED)


def another_text():
    losses = Losses("of_text")
    losses.of_text = lambda module, batch: toy.loss(module, batch)

    def change(module):
        if losses.kind == "of_text":
            losses.kind = "loss_a"
        else:
            losses.scale = 3.0

    return losses.by_text, change, lambda: None, (10, CHANGED)


def late_list_within_itself():
    args, ring = argparse.Namespace(more=None), [0.5]
    ring.append(ring)

    def loss(module, batch):
        return toy.loss(module, batch) * (1.0 if args.more is None else args.more[0])

    return loss, lambda module: setattr(args, "more", ring)


def last_rate():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return lambda module, batch: toy.loss(module, batch) * schedule.get_last_lr()[0], lambda module: (optimizer.step(), schedule.step())


CHANGES = {
    "anchors": anchors, "memory": memory, "history": history, "terms": terms, "emptied": emptied, "long_list": long_list,
    "weights_in_a_cell": weights_in_a_cell, "weights_in_a_dict": weights_in_a_dict, "weights_in_a_list": weights_in_a_list,
    "weights_of_an_object": weights_of_an_object, "prefix": computed_name("a", "by_prefix"), "suffix": computed_name("a", "by_suffix"),
    "text": computed_name("of_text", "by_text"), "computed_attribute": computed_attribute, "late_attribute": late_attribute,
    "late_attribute_of_the_model": late_attribute_of_the_model, "last_rate": last_rate,
    "percent": computed_name("a", "by_percent"), "format": computed_name("a", "by_format"), "swapped": swapped,
    "beside_one_that_moves": beside_one_that_moves, "late_container": late_container, "another_text": another_text,
    "late_list_within_itself": late_list_within_itself,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_by_the_loop(name):
    made = {}

    def loss(module, batch):
        return made["loss"](module, batch)

    def run(step, module, optimizer):
        made["loss"], change, before_each, changed = (*CHANGES[name](), lambda: None, (CHANGED,))[:4]
        losses = []
        for i, batch in enumerate(toy.batches(30)):
            before_each()
            if i in changed:
                change(module)
            losses.append(step(batch))
        return losses

    toy.same_as_loop(run, loss, **toy.UNCHECKED)


latest = torch.zeros(())  # as a script's own `latest = step(batch)`
gathered = []


def gathering(module, batch):
    value = types.SimpleNamespace(latest=toy.loss(module, batch))  # an attribute of the global's name
    gathered.append(value.latest.detach())
    return value.latest


def test_a_global_of_the_name_of_an_attribute_costs_no_replay():
    global latest
    module = toy.model()
    step = duet.graph_step(module, lambda module, batch: toy.loss(module, batch) + types.SimpleNamespace(latest=0.0).latest, toy.sgd(module))
    for batch in toy.batches(60):
        latest = step(batch)
    assert [(entry["state"], entry["replays"]) for entry in step.report()] == [("captured", 58)]


def test_what_moves_at_each_step_and_is_not_read_costs_no_replay():
    class Loop:
        def __call__(self, module, batch):
            output = types.SimpleNamespace(loss=toy.loss(module, batch))
            return output.loss

    loop, module = Loop(), toy.model()
    step = duet.graph_step(module, loop, toy.sgd(module), **toy.UNCHECKED)
    for batch in toy.batches(100):
        loop.loss = step(batch)
    assert len(step.report()) <= 4 and sum(entry["replays"] - entry["checked"] for entry in step.report()) > 80, step.report()


def test_what_the_step_gathers_is_one_capture():
    module = toy.model()
    step = duet.graph_step(module, gathering, toy.sgd(module))
    for i, batch in enumerate(toy.batches(60)):
        step(batch)
        if i % 10 == 9:
            gathered.clear()
    assert toy.captured(step.report()) == ["step"] and len(step.report()) == 1, step.report()


def test_a_tensor_bound_anew_in_each_epoch_is_captured_few_times():
    weight = torch.ones(3)
    module = toy.model()
    step = duet.graph_step(module, lambda module, batch: F.cross_entropy(module(batch["x"]), batch["y"], weight=weight), toy.sgd(module))
    for epoch in range(12):
        weight = torch.full((3,), 1.0 + epoch)
        for batch in toy.batches(20):
            step(batch)
    assert len(step.report()) <= 4, step.report()


def test_attention_without_dropout_in_a_checkpoint():
    def attention(x):
        return F.scaled_dot_product_attention(x, x, x)

    def loss(module, batch):
        hidden = module(batch["x"])[None, None].repeat(1, 2, 1, 16)
        return checkpoint(attention, hidden, use_reentrant=False).square().mean()

    toy.same_as_loop(lambda step, module, optimizer: [step(batch) for batch in toy.batches(30)], loss)


def data_within(module, batch):
    kept = module.output.weight.data.clone()
    module.output.weight.data.add_(1.0)
    loss = toy.loss(module, batch)
    module.output.weight.data = kept
    return loss


@pytest.mark.parametrize("within", [True, False])
def test_weights_that_get_other_memory(within):
    module = toy.model()
    step = duet.graph_step(module, data_within if within else toy.loss, toy.sgd(module))
    for batch in toy.batches(40):
        step(batch)
        if not within:
            module.output.weight.data = module.output.weight.data.clamp(-0.1, 0.1)
    (entry,) = step.report()
    assert entry["state"] == "eager" and "'output.weight'" in entry["reason"], entry
    assert ("within the step" if within else "from step to step") in entry["reason"]
