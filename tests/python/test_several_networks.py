"""Steps of one optimizer among several: a generator and a discriminator, a backbone that another step trains."""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import duet
import toy


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def adversarial(scores, real):
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def discriminator_loss(model, batch):
    fake = model["generator"](batch["noise"]).detach()
    return adversarial(model["discriminator"](batch["real"]), 1) + adversarial(model["discriminator"](fake), 0)


def generator_loss(model, batch):
    return adversarial(model["discriminator"](model["generator"](batch["noise"])), 1)


LOSSES = {"discriminator": discriminator_loss, "generator": generator_loss}


def data(count):
    numbers = torch.Generator().manual_seed(5)
    return [
        {"noise": torch.randn(10, 4, generator=numbers), "real": torch.randn(10, 8, generator=numbers)}
        for _ in range(count)
    ]


def train(make_step):
    """Losses and weights of a loop that takes a step of each network by turns; `make_step` is given one's name and the model."""
    model, batches = networks(), data(7)
    steps = {name: make_step(name, model) for name in LOSSES}
    torch.manual_seed(2)
    return [steps[name](batches[i % 7]) for i in range(60) for name in LOSSES], model.state_dict()


def loop_of_pytorch(clip=None, **options):
    return train(lambda name, model: functools.partial(
        toy.loop_step, model, LOSSES[name], torch.optim.Adam(model[name].parameters(), lr=1e-3, **options),
        clip=clip and (lambda _: nn.utils.clip_grad_norm_(model[name].parameters(), clip)),
    ))


@pytest.mark.parametrize("clip", [None, 0.1])
def test_two_graph_steps_train_a_gan_with_the_bits_of_the_loop(clip):
    steps = []

    def make_step(name, model):
        optimizer = torch.optim.Adam(model[name].parameters(), lr=1e-3)
        steps.append(duet.graph_step(model, LOSSES[name], optimizer, clip_grad_norm=clip))
        return steps[-1]

    toy.assert_same_bits(train(make_step), loop_of_pytorch(clip))
    for step in steps:
        assert toy.captured(step.report()) == ["step"], step.report()


def test_a_network_that_the_loss_closes_over_is_left_as_it_is():
    model, expected = networks(), networks()
    step = duet.graph_step(
        model["generator"],
        lambda generator, batch: adversarial(model["discriminator"](generator(batch["noise"])), 1),
        torch.optim.SGD(model["generator"].parameters(), lr=0.1),
    )
    optimizer = torch.optim.SGD(expected["generator"].parameters(), lr=0.1)
    for batch in data(20):
        torch.manual_seed(2)
        ours = step(batch)
        torch.manual_seed(2)
        toy.assert_same_bits(ours, toy.loop_step(expected, generator_loss, optimizer, batch))
    toy.assert_same_bits(model.state_dict(), expected.state_dict())
    assert all(parameter.grad is None for parameter in model["discriminator"].parameters())
    assert toy.captured(step.report()) == ["step"], step.report()


class Learner(nn.Module):
    """Holds what trains it."""

    def __init__(self, kind):
        super().__init__()
        self.net = toy.model()
        if kind == "graph_step":
            self.step = duet.graph_step(self, self.loss, toy.adam(self))
        else:
            self.trainer = duet.make_trainer(kind, self, self.loss, default_hooks=False)
            self.step = self.trainer.step

    def loss(self, model, batch):
        return toy.loss(self.net, batch)


@pytest.mark.parametrize("kind", ["graph_step", "eager", "graph"])
def test_a_model_in_a_ring_with_its_step_or_trainer_is_collected(kind):
    learner = Learner(kind)
    for batch in toy.batches(5):
        learner.step(batch)
    kept = weakref.ref(learner)
    del learner
    gc.collect()
    assert kept() is None
