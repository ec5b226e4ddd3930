"""Resumes that go on with what modules keep beside tensors, and with the generators of other loaders than training's."""

import signal

import numpy
import pytest
import torch
from torch import nn
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
