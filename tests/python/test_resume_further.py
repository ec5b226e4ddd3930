"""Resumes that go on with what modules keep beside tensors, and with the generators of other loaders than training's."""

import random
import signal

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import duet
import toy


class Stop(duet.Hook):
    def __init__(self, step):
        self.step = step

    def after_train_iter(self, run):
        if run.progress.step == self.step:
            run.request_stop("enough")


class Counting(nn.Module):
    def __init__(self, nested):
        super().__init__()
        self.layer, self.seen, self.nested = nn.Linear(8, 3), 0, nested

    def get_extra_state(self):
        return {"seen": self.seen} if self.nested else self.seen

    def set_extra_state(self, state):
        self.seen = state["seen"] if self.nested else state

    def forward(self, x):
        self.seen += self.training
        return self.layer(x) * (1 + 0.01 * self.seen)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_extra_state_goes_on(mode, nested, tmp_path):
    def run(stop, load=None):
        torch.manual_seed(0)
        model = nn.Sequential(Counting(nested))
        trainer = duet.make_trainer(mode, model, toy.loss, optimizer=duet.SGD(lr=0.1), hooks=[Stop(stop)], default_hooks=False, max_epochs=1)
        if load:
            trainer.load(load)
        trainer.fit(toy.batches(12))
        return trainer

    whole, resumed = run(0), run(0, run(5).save(str(tmp_path)))
    assert resumed.model[0].seen == whole.model[0].seen
    toy.assert_same_bits(whole.model.state_dict(), resumed.model.state_dict())


class Draws(nn.Module):
    def __init__(self, draw, generator):
        super().__init__()
        self.layer, self.draw, self.own = nn.Linear(8, 3), draw, {"generator": generator}

    def forward(self, x):
        return self.layer(x) * self.draw(self.own["generator"])


GENERATORS = {
    "torch": (lambda g: torch.rand(1, generator=g), lambda: torch.Generator().manual_seed(3)),
    "python": (lambda g: g.random(), lambda: random.Random(3)),
    "numpy": (lambda g: float(g.random()), lambda: numpy.random.default_rng(3)),
}


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_generators_of_modules_go_on(mode, kind, tmp_path):
    def trainer_of(load=None):
        torch.manual_seed(0)
        draw, make = GENERATORS[kind]
        trainer = duet.make_trainer(mode, nn.Sequential(Draws(draw, make())), toy.loss, optimizer=duet.SGD(lr=0.1))
        if load:
            trainer.load(load)
        return trainer

    whole = trainer_of()
    for n, batch in enumerate(toy.batches(12)):
        if n == 5:
            saved = whole.save(str(tmp_path))
        whole.step(batch)
    resumed = trainer_of(saved)
    for batch in toy.batches(12)[5:]:
        resumed.step(batch)
    toy.assert_same_bits(whole.model.state_dict(), resumed.model.state_dict())


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.layer(x))


class Freezes(duet.Hook):
    def __init__(self, model):
        self.model = model

    def before_train_epoch(self, run):
        self.model.norm.train(run.progress.epoch == 0)


@pytest.mark.parametrize("again", ["loaded", "same trainer"])
@pytest.mark.parametrize("kind", ["hook", "lightning"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_what_is_set_as_an_epoch_begins_holds_where_a_run_goes_on_within_it(mode, kind, again, tmp_path):
    def trainer_of(stop):
        torch.manual_seed(0)
        model, options = Normed(), {"default_hooks": False, "max_epochs": 2}
        if kind == "hook":
            hooks = [Stop(stop), Freezes(model)]
            return duet.make_trainer(mode, model, toy.loss, optimizer=duet.SGD(lr=0.1), hooks=hooks, **options)

        class Module(pytest.importorskip("lightning").LightningModule):
            def __init__(self):
                super().__init__()
                self.net = model

            def training_step(self, batch, batch_idx):
                return F.cross_entropy(self.net(batch["x"]), batch["y"])

            def on_train_epoch_start(self):
                self.net.norm.train(self.current_epoch == 0)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return duet.make_trainer(mode, duet.lightning(Module()), hooks=[Stop(stop)], **options)

    whole, stopped = trainer_of(0), trainer_of(9)
    whole.fit(toy.batches(6))
    stopped.fit(toy.batches(6))
    resumed = stopped
    if again == "loaded":
        resumed = trainer_of(0)
        resumed.load(stopped.save(str(tmp_path)))
    resumed.fit(toy.batches(6))
    toy.assert_same_bits(whole.model.state_dict(), resumed.model.state_dict())


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_loop_of_ones_own_trains_modules_as_they_were_set(mode):
    for held in (True, False):  # or the whole model is in evaluation, as one that was loaded
        model = Normed()
        (model.norm if held else model).eval()
        trainer = duet.make_trainer(mode, model, toy.loss, optimizer=duet.SGD(lr=0.1))
        trainer.step(toy.batches(1)[0])
        assert model.norm.num_batches_tracked == (0 if held else 1)


class Noisy(Dataset):
    def __init__(self):
        self.rng, self.rows = numpy.random.default_rng(5), toy.batches(4)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {**self.rows[i], "x": self.rows[i]["x"] + torch.tensor(self.rng.normal(), dtype=torch.float32)}


class Validations(duet.Hook):
    def __init__(self):
        self.losses = []

    def after_val_epoch(self, run):
        self.losses.append(run.metrics["loss"])


@pytest.mark.parametrize("noisy", ["validation", "statistics"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_generators_of_other_loaders_go_on(mode, noisy, tmp_path):
    def run(stop, load=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
        loss = lambda model, batch: toy.loss_of(model(batch["x"]), batch)
        loaders = {noisy: DataLoader(Noisy(), batch_size=None)}
        validations = Validations()
        hooks = [validations, Stop(stop)] + ([duet.PreciseBNHook(loaders["statistics"], num_iter=3)] if noisy == "statistics" else [])
        trainer = duet.make_trainer(mode, model, loss, optimizer=duet.SGD(lr=0.1), default_hooks=False, hooks=hooks, max_epochs=2,
                                    val_interval=5, val_by_epoch=False)  # fmt: skip
        if load:
            trainer.load(load)
        trainer.fit(toy.batches(12), loaders.get("validation", toy.batches(2)))
        return validations.losses, trainer

    whole = run(0)[0]
    first, stopped = run(12)
    assert first + run(0, stopped.save(str(tmp_path)))[0] == whole and len(set(whole)) == len(whole)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_statistics_of_a_validation_that_is_cut_are_made_up_for(mode, tmp_path):
    class Validation(list):
        armed = False

        def __iter__(self):
            for batch in super().__iter__():
                yield batch
                if self.armed:
                    signal.raise_signal(signal.SIGTERM)

    def run(validation, load=None, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
        loss = lambda model, batch: toy.loss_of(model(batch["x"]), batch)
        validations = Validations()
        hooks = [validations, duet.StopSignalHook(), duet.PreciseBNHook(toy.batches(3, seed=3), num_iter=3)]
        hooks += [duet.CheckpointHook(interval=10**6)] if options else []
        trainer = duet.make_trainer(mode, model, loss, optimizer=duet.SGD(lr=0.1), default_hooks=False, hooks=hooks, max_epochs=1,
                                    val_interval=5, val_by_epoch=False, num_sanity_val_steps=0, **options)  # fmt: skip
        if load:
            trainer.load(load)
        trainer.fit(toy.batches(12), validation)
        return validations.losses, trainer.outcome

    whole, _ = run(Validation(toy.batches(4, seed=7)))
    cut = Validation(toy.batches(4, seed=7))
    cut.armed = True
    assert run(cut, work_dir=str(tmp_path)) == ([], "interrupted")
    assert run(Validation(toy.batches(4, seed=7)), load=str(tmp_path / "checkpoints")) == (whole, "finished")
