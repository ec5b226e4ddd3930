"""duet.lightning with a class that has what a LightningModule has; with lightning itself where it is installed."""

import copy
import json
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

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
    assert set(metrics) == {"val_max", "val_loss", "epoch_number"} and metrics["val_loss"] == pytest.approx(expected, rel=1e-6)


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


NOT_CALLED = ["on_after_backward", "optimizer_step", "configure_gradient_clipping", "configure_callbacks", "on_save_checkpoint"]


@pytest.mark.parametrize("name", NOT_CALLED)
def test_what_is_not_called_is_refused(name):
    methods = {name: lambda self, *_: None, "__module__": "lightning_models"}  # a user's file
    other = type("Other", (type("LightningModule", (Module,), methods),), {})
    with pytest.raises(duet.ConfigError, match=rf"Other defines {name}\(\)"):
        duet.lightning(other())


def test_a_trainer_that_has_not_what_the_module_asks_for_says_what_it_has():
    module = make()
    duet.EagerTrainer(duet.lightning(module))
    with pytest.raises(AttributeError, match="'datamodule'.*current_epoch"):
        module.trainer.datamodule
    with pytest.raises(AttributeError, match="'fit_loop'.*current_epoch"):
        module.trainer.fit_loop = None
    copy.deepcopy(module)


class Subclass(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def hooked(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def groups(module, **numbers):
    return [{"params": module.hidden.parameters(), **numbers}, {"params": [*module.norm.parameters(), *module.output.parameters()]}]


def scheduled(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


REFUSED = {
    "found test_lightning.Subclass": lambda m: Subclass(m.parameters(), lr=0.1),
    "hooks of SGD": hooked,
    "alpha=": lambda m: torch.optim.RMSprop(groups(m, alpha=0.5)),
    "decoupled_weight_decay=True": lambda m: torch.optim.Adam(m.parameters(), decoupled_weight_decay=True),
    "lr_scheduler": scheduled,
    "found 2 optimizers": lambda m: [torch.optim.SGD(m.parameters()), torch.optim.SGD(m.parameters())],
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_optimizer_that_duet_has_not_is_refused_unless_the_trainer_has_one(message):
    module = type("Configured", (Module,), {"configure_optimizers": REFUSED[message]})()
    with pytest.raises(duet.ConfigError, match=message):
        duet.EagerTrainer(duet.lightning(module))
    duet.EagerTrainer(duet.lightning(module), optimizer=duet.SGD(lr=0.1), default_hooks=False).step(toy.batches(1)[0])


def test_numbers_that_the_module_sets_in_its_optimizer_are_no_secret():
    class Decays(Module):
        def configure_optimizers(self):
            self.kept = torch.optim.SGD(self.parameters(), lr=0.1)
            return self.kept

        def on_train_epoch_end(self):
            self.kept.param_groups[0]["lr"] *= 0.1

    with pytest.raises(duet.ConfigError, match="found other numbers in the optimizer"):
        duet.EagerTrainer(duet.lightning(Decays()), max_epochs=2, default_hooks=False).fit(toy.batches(2))


@pytest.mark.parametrize("of", ["duck", "lightning"])
def test_steps_of_which_the_index_is_not_read_are_replayed(of):
    base = nn.Module if of == "duck" else pytest.importorskip("lightning").LightningModule
    trainer = duet.GraphTrainer(duet.lightning(lightning_modules(base)["Ported"]()), default_hooks=False, max_epochs=8, check="off")
    trainer.fit(toy.batches(8))
    assert len(trainer.report()) == 1
    assert sum(entry["unchecked"] for entry in trainer.report()) > 40, trainer.report()


def logged_kinds(self, batch):
    value = functional.cross_entropy(self(batch["x"]), batch["y"])
    for kind in ("sum", "min", "max", "mean"):
        self.log(kind, value, reduce_fx=kind)
    self.log("torch_max", value, reduce_fx=torch.max)
    self.log("own_size", value, batch_size=int(batch["y"].sum()) + 1)
    self.log("one", value.reshape(1))
    self.log_dict({"number": 2.0}, reduce_fx="sum")
    return value


def lightning_modules(base):
    """Classes by what they ask of a trainer."""

    class Ported(base):
        automatic_optimization = True

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.hidden, self.norm, self.output = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
            self.seen = []

        def forward(self, x):
            return self.output(torch.tanh(self.norm(self.hidden(x))))

        def training_step(self, batch, batch_idx):
            return functional.cross_entropy(self(batch["x"]), batch["y"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class HeadAlone(Ported):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.output.parameters(), lr=0.1, momentum=0.9)]

    class OneGroup(Ported):
        def configure_optimizers(self):
            return torch.optim.SGD([{"params": self.parameters(), "lr": 0.5}], lr=0.001)

    class SetLater(Ported):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(groups(self, weight_decay=0.5), lr=0.1)
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            return {"optimizer": optimizer}

    class SetUp(Ported):
        def setup(self, stage):
            self.scale = 3.0

        def configure_model(self):
            torch.manual_seed(4)
            self.output = nn.Linear(8, 3)

        def training_step(self, batch):
            return super().training_step(batch, 0) * self.scale

        def on_train_epoch_end(self):
            self.seen.append((self.current_epoch, self.global_step))

    class Indexed(Ported):
        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(("start", batch_idx))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append(("end", batch_idx))

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (1 + batch_idx)

    class Stops(Ported):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.should_stop = batch_idx == 2

    class Logs(Ported):
        tested = True

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("trained", loss, on_epoch=True, on_step=False, batch_size=len(batch["y"]))
            self.log("largest", loss, on_epoch=True, reduce_fx=max)
            return loss

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.seen.append(float(logged_kinds(self, batch)) if not torch.is_grad_enabled() else 0.0)

        def on_validation_epoch_end(self):
            self.log("epoch_end", 1.5)

        def test_step(self, batch, batch_idx):
            self.log("tested", self(batch["x"]).mean())

        def on_test_epoch_end(self):
            self.log("test_end", 2.5)

    return {c.__name__: c for c in (Ported, HeadAlone, OneGroup, SetLater, SetUp, Indexed, Stops, Logs)}


def fitted_by_lightning(module, data, **options):
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **options)  # fmt: skip
    loader = DataLoader(data, batch_size=None)
    trainer.fit(module, loader, loader if isinstance(getattr(type(module), "tested", None), bool) else None)
    return trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["Ported", "HeadAlone", "OneGroup", "SetLater", "SetUp", "Indexed", "Stops"])
def test_a_module_trains_as_under_lightning(mode, kind, accumulate):
    if kind == "Stops" and accumulate == 2:
        return  # Lightning stops in the middle of a step
    lightning = pytest.importorskip("lightning")
    data = toy.batches(4)
    theirs, ours = (lightning_modules(lightning.LightningModule)[kind]() for _ in range(2))
    fitted_by_lightning(theirs, data, accumulate_grad_batches=accumulate)
    duet.make_trainer(mode, duet.lightning(ours), max_epochs=2, accumulate=accumulate, default_hooks=False).fit(data)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value, rtol=1e-5, atol=1e-7), name
    assert sorted(ours.seen) == sorted(theirs.seen)


@pytest.mark.filterwarnings("ignore")
def test_figures_are_those_of_lightning(mode):
    lightning = pytest.importorskip("lightning")
    data = toy.batches(4)
    theirs, ours = (lightning_modules(lightning.LightningModule)["Logs"]() for _ in range(2))
    expected = fitted_by_lightning(theirs, data).callback_metrics
    trainer = duet.make_trainer(mode, duet.lightning(ours), max_epochs=2, default_hooks=False)
    trainer.fit(data, data)
    found = ours.trainer.callback_metrics
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name != "largest_step":  # the last step's
            assert found[name] == pytest.approx(float(value), rel=1e-5), name
    assert set(trainer.validate({"a": data, "b": data[:1]})) >= {"a/sum", "b/sum", "epoch_end"}
    tested = trainer.test(data)
    assert set(tested) == {"tested", "test_end"}
    # Whoever trains it gets what it logs.
    assert fitted_by_lightning(ours, data).callback_metrics.keys() == expected.keys()
    assert set(trainer.test(data)) == {"tested", "test_end"}
    other = duet.make_trainer(mode, duet.lightning(ours), default_hooks=False)
    assert [set(t.test(data)) for t in (trainer, other, trainer)] == [{"tested", "test_end"}] * 3
