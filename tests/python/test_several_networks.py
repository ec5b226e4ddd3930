"""Steps of one optimizer among several: a generator and a discriminator, a backbone that another step trains."""

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


def loop_of_pytorch(steps, clip=None):
    model = networks()
    optimizers = {name: torch.optim.Adam(model[name].parameters(), lr=1e-3) for name in LOSSES}
    batches, losses = data(7), []
    torch.manual_seed(2)
    for i in range(steps):
        for name, loss in LOSSES.items():
            optimizers[name].zero_grad()
            value = loss(model, batches[i % 7])
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model[name].parameters(), clip)
            optimizers[name].step()
            losses.append(value.detach())
    return model, losses


@pytest.mark.parametrize("clip", [None, 0.1])
def test_two_graph_steps_train_a_gan_with_the_bits_of_the_loop(clip):
    expected, expected_losses = loop_of_pytorch(60, clip)
    model = networks()
    steps = {
        name: duet.graph_step(
            model, loss, torch.optim.Adam(model[name].parameters(), lr=1e-3), clip_grad_norm=clip
        )
        for name, loss in LOSSES.items()
    }
    batches, losses = data(7), []
    torch.manual_seed(2)
    for i in range(60):
        losses += [steps[name](batches[i % 7]) for name in LOSSES]
    toy.assert_same_bits(losses, expected_losses)
    toy.assert_same_bits(model.state_dict(), expected.state_dict())
    for step in steps.values():
        assert toy.captured(step.report()) == ["step"], step.report()


def test_two_trainers_train_a_gan_with_the_bits_of_the_loop(mode):
    model = networks()
    trainers = {
        name: duet.make_trainer(
            mode,
            model,
            loss,
            optimizer=duet.Adam(lr=1e-3),
            param_groups=[{"params": list(model[name].parameters())}],
            allow_untrained=True,
            default_hooks=False,
        )
        for name, loss in LOSSES.items()
    }
    expected = networks()
    optimizers = {name: torch.optim.Adam(expected[name].parameters(), lr=1e-3, fused=True) for name in LOSSES}
    batches = data(7)
    torch.manual_seed(2)
    ours = [trainers[name].step(batches[i % 7]) for i in range(40) for name in LOSSES]
    torch.manual_seed(2)
    theirs = [
        toy.loop_step(expected, LOSSES[name], optimizers[name], batches[i % 7]) for i in range(40) for name in LOSSES
    ]
    toy.assert_same_bits(ours, theirs)
    toy.assert_same_bits(model.state_dict(), expected.state_dict())


def test_parameters_that_nobody_trains_are_an_error_unless_allowed():
    model = networks()
    with pytest.raises(duet.ConfigError, match="'generator.0.weight' is in no group.*allow_untrained"):
        duet.GraphTrainer(
            model, discriminator_loss, param_groups=[{"params": list(model["discriminator"].parameters())}]
        )


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


def test_a_model_that_holds_its_own_step_is_collected():
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = toy.model()
            self.step = duet.graph_step(self, self.loss, torch.optim.Adam(self.parameters()))

        def loss(self, model, batch):
            return toy.loss(self.net, batch)

    learner = Learner()
    for batch in toy.batches(5):
        learner.step(batch)
    kept = weakref.ref(learner)
    del learner
    gc.collect()
    assert kept() is None


def test_a_trainer_in_a_ring_with_its_model_is_collected(mode):
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = toy.model()

        def loss(self, model, batch):
            return toy.loss(self.net, batch)

    learner = Learner()
    learner.trainer = duet.make_trainer(mode, learner, learner.loss, default_hooks=False)
    for batch in toy.batches(5):
        learner.trainer.step(batch)
    kept = weakref.ref(learner)
    del learner
    gc.collect()
    assert kept() is None
