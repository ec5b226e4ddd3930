"""duet.lightning with a class that has what a LightningModule has; with lightning itself where it is installed."""

import copy
import json

import pytest
import torch
from torch.nn import functional

import duet
import toy


class Module(toy.Net):
    """The hooks that Lightning's class defines and that do nothing."""

    automatic_optimization = True

    def __init__(self):
        super().__init__()
        self.calls = []

    def training_step(self, batch, batch_idx):
        self.calls.append(("training_step", self.trainer.current_epoch, batch_idx))
        prediction = self(batch["x"])
        loss = functional.cross_entropy(prediction, batch["y"])
        self.log("train_loss", loss, prog_bar=True)
        self.log("size", len(batch["y"]))
        return loss

    def validation_step(self, batch, batch_idx):
        prediction = self(batch["x"])
        self.log("val_max", prediction.max())
        return functional.cross_entropy(prediction, batch["y"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2, fused=True)

    def on_train_start(self):
        self.calls.append("on_train_start")

    def on_train_epoch_start(self):
        self.calls.append("on_train_epoch_start")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.calls.append(("on_train_batch_end", batch_idx, float(outputs["loss"]), len(batch["y"])))

    def on_validation_epoch_end(self):
        self.calls.append(("on_validation_epoch_end", self.trainer.callback_metrics["val_max"]))
        self.log("epoch_number", self.trainer.current_epoch)

    def on_train_epoch_end(self):
        self.calls.append("on_train_epoch_end")

    def on_train_end(self):
        self.calls.append("on_train_end")


def make():
    torch.manual_seed(0)
    return Module()


def test_hooks_are_called_around_epochs_and_batches():
    module, data = make(), toy.batches(3)
    trainer = duet.EagerTrainer(duet.lightning(module), max_epochs=2, default_hooks=False)
    trainer.fit(data, data)
    names = [call if isinstance(call, str) else call[0] for call in module.calls]
    epoch = ["on_train_epoch_start", *["training_step", "on_train_batch_end"] * 3]
    assert names[0] == "on_train_start" and names[-1] == "on_train_end"
    assert names[1:8] == epoch and names.count("on_train_epoch_end") == 2
    assert [call[1:] for call in module.calls if call[0] == "training_step"] == [(e, i) for e in (0, 1) for i in range(3)]
    assert [call[1] for call in module.calls if call[0] == "on_train_batch_end"] == [0, 1, 2, 0, 1, 2]
    assert names.count("on_validation_epoch_end") == 2


def test_both_modes_have_the_bits_of_the_loop(mode):
    module, data = make(), toy.batches(5)
    trainer = duet.make_trainer(mode, duet.lightning(module), max_epochs=6, default_hooks=False)
    torch.manual_seed(3)
    trainer.fit(data, data)
    other = make()
    optimizer = other.configure_optimizers()
    torch.manual_seed(3)
    for batch in data * 6:
        toy.loop_step(other, toy.loss, optimizer, batch)
    toy.assert_same_bits(module.state_dict(), other.state_dict())


def test_logged_values_are_means_over_the_evaluation(mode):
    module, data = make(), toy.batches(4)
    trainer = duet.make_trainer(mode, duet.lightning(module), default_hooks=False)
    metrics = trainer.validate(data)
    module.eval()
    expected = sum(module(batch["x"]).max().item() for batch in data) / 4
    assert metrics["val_max"] == pytest.approx(expected, rel=1e-6)
    assert trainer.step(data[0]).item() > 0
    assert trainer.result["train_loss"].item() > 0 and trainer.result["size"].item() == 12


def test_a_validation_step_may_log_all_and_return_nothing(mode):
    class Silent(Module):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", super().validation_step(batch, batch_idx))

    data = toy.batches(4)
    trainer = duet.make_trainer(mode, duet.lightning(Silent()), default_hooks=False)
    module = trainer.model.eval()
    expected = sum(functional.cross_entropy(module(batch["x"]), batch["y"]).item() for batch in data) / 4
    metrics = trainer.validate(data)
    assert set(metrics) == {"val_max", "val_loss"} and metrics["val_loss"] == pytest.approx(expected, rel=1e-6)


class Count:
    """A torchmetric, as far as duet asks for one."""

    def __init__(self):
        self.total = 0

    def update(self, tensor):
        self.total += len(tensor)

    def compute(self):
        return self.total

    def reset(self):
        self.total = 0


class Counting(Module):
    def __init__(self):
        super().__init__()
        self.trained, self.seen = Count(), Count()

    def training_step(self, batch, batch_idx):
        self.trained.update(batch["y"])
        self.log("trained_on", self.trained)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.seen.update(batch["y"])
        self.log("seen", self.seen)
        return super().validation_step(batch, batch_idx)


def test_torchmetrics_are_computed_when_their_epoch_ends(tmp_path):
    trainer = duet.EagerTrainer(duet.lightning(Counting()), max_epochs=2, val_interval=2, work_dir=str(tmp_path))
    trainer.fit(toy.batches(3), toy.batches(1))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["trained_on"] for line in lines if line["kind"] == "epoch"] == [36, 36]
    assert not any("trained_on" in line for line in lines if line["kind"] == "val")
    assert [trainer.validate(toy.batches(3))["seen"] for _ in range(2)] == [36, 36]


@pytest.mark.parametrize("name", ["on_after_backward", "optimizer_step", "configure_gradient_clipping"])
def test_what_acts_inside_the_step_is_refused(name):
    other = type("Other", (Module,), {name: lambda self, *_: None})
    with pytest.raises(duet.ConfigError, match=rf"Other defines {name}\(\)"):
        duet.lightning(other())


def test_a_trainer_that_has_not_what_the_module_asks_for_says_what_it_has():
    module = make()
    duet.lightning(module)
    with pytest.raises(AttributeError, match="'datamodule'.*current_epoch"):
        module.trainer.datamodule
    copy.deepcopy(module)


def test_the_module_of_lightning():
    lightning = pytest.importorskip("lightning")

    class Real(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = toy.model()
            self.epochs = []

        def training_step(self, batch, batch_idx):
            loss = functional.cross_entropy(self.net(batch["x"]), batch["y"])
            self.log("train_loss", loss, on_epoch=True)
            return loss

        def on_train_epoch_end(self):
            self.epochs.append((self.current_epoch, self.global_step))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Real()
    trainer = duet.GraphTrainer(duet.lightning(module), max_epochs=3, default_hooks=False)
    trainer.fit(toy.batches(4))
    assert module.epochs == [(0, 4), (1, 8), (2, 12)]
    assert toy.captured(trainer.report()) == ["step"]
