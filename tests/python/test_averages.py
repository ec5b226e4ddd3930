"""Averages of weights and buffers against torch.optim.swa_utils, of models that exchange their tensors."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import duet
import toy


class Centered(nn.Module):
    """DINO's center: a buffer that each step assigns anew."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.output = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("center", torch.zeros(8))

    def forward(self, x):
        hidden = self.hidden(x)
        if self.training:
            self.center = self.center * 0.9 + hidden.detach().mean(0) * 0.1
        return self.output(torch.tanh(hidden - self.center))


def freeze(model, step):
    """The head trains from step 12 on."""
    model.output.requires_grad_(step >= 12)


@pytest.mark.parametrize("update_buffers", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_average_follows_what_a_model_exchanges_and_thaws(mode, update_buffers, tmp_path):
    data = toy.batches(24)
    twin = Centered()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    average = AveragedModel(twin, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=update_buffers)
    for step, batch in enumerate(data):
        freeze(twin, step)
        toy.loop_step(twin, toy.loss, optimizer, batch)
        average.update_parameters(twin)

    def trainer():
        return duet.make_trainer(
            mode, Centered(), toy.loss_of, forward=toy.forward, optimizer=duet.SGD(lr=0.1), default_hooks=False,
            hooks=[duet.EMAHook(momentum=0.1, update_buffers=update_buffers)])  # fmt: skip

    def steps(trainer, first, last):
        for step in range(first, last):
            freeze(trainer.model, step)
            trainer.step(data[step])
        return trainer

    whole = steps(trainer(), 0, 24)
    values = average.module.eval()
    toy.assert_same_bits(whole.model.state_dict(), twin.state_dict())
    found = duet.read_weights(whole.save(str(tmp_path)) + "/ema.safetensors")
    toy.assert_same_bits(dict(sorted(found.items())), dict(sorted(values.state_dict().items())))
    with torch.no_grad():
        expected = sum(float(toy.loss(values, batch)) for batch in data[:3]) / 3
    assert whole.validate(data[:3])["loss"] == pytest.approx(expected, rel=1e-6)
    toy.assert_same_bits(whole.model.state_dict(), twin.state_dict())
    resumed = trainer()
    resumed.load(steps(trainer(), 0, 13).save(str(tmp_path / "early")))
    assert torch.equal(steps(resumed, 13, 24).state_dict()["hooks.ema.weights.center"], found["center"])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_what_is_always_frozen_is_taken_as_it_is(mode):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(8, 3)
            self.mask = nn.Parameter(torch.tensor([0.0, 0.0, -float("inf")]), requires_grad=False)
            self.low = nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn), requires_grad=False)

        def forward(self, x):
            return super().forward(x)[:, :2] + self.mask[:2]

    trainer = duet.make_trainer(
        mode, Masked(), lambda prediction, batch: nn.functional.cross_entropy(prediction, batch["y"] % 2), forward=toy.forward,
        optimizer=duet.SGD(lr=0.1), default_hooks=False, hooks=[duet.EMAHook(momentum=0.1)])  # fmt: skip
    for batch in toy.batches(8):
        trainer.step(batch)
    assert torch.equal(trainer.state_dict()["hooks.ema.weights.mask"], trainer.model.mask)
    assert trainer.validate(toy.batches(2))["loss"] < 10


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_module_that_came_later_keeps_its_training_flag(mode):
    def steps(model, trainer):
        result = []
        for i, batch in enumerate(toy.batches(30)):
            if i == 10:
                model.drop, model.frozen = nn.Dropout(0.5), nn.Dropout(0.5).eval()
            torch.manual_seed(i)
            result.append(trainer(batch))
            if i % 4 == 0 and isinstance(trainer.__self__, duet.BaseTrainer):
                trainer.__self__.predict(batch)
        assert model.drop.training and not model.frozen.training
        return result

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.hidden, self.output = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x):
            hidden = self.hidden(x)
            for name in ("drop", "frozen"):
                hidden = getattr(self, name)(hidden) if hasattr(self, name) else hidden
            return self.output(hidden)

    class Loop:
        def __init__(self, model):
            self.model, self.optimizer = model, toy.sgd(model)

        def step(self, batch):
            return toy.loop_step(self.model, toy.loss, self.optimizer, batch)

    expected = Net()
    losses = steps(expected, Loop(expected).step)
    model = Net()
    trainer = duet.make_trainer(mode, model, toy.loss_of, forward=toy.forward, optimizer=duet.SGD(lr=0.1), default_hooks=False)
    assert steps(model, trainer.step) == losses
    toy.assert_same_bits(expected.state_dict(), model.state_dict())
