"""Runs that stop and go on have the bits of those that did not, wherever they stop and whatever they draw from."""

import functools
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Subset

import duet
import toy


class Noting(duet.Hook):
    """What an unbroken run says of itself; stops after a step."""

    def __init__(self, stop=0):
        self.stop, self.lr, self.epochs = stop, [], []

    def after_train_iter(self, run):
        self.lr.append(run.get("lr"))
        if run.progress.step == self.stop:
            run.request_stop("enough")

    def after_train_epoch(self, run):
        self.epochs.append((run.progress.step, run.progress.epoch))


def trained(mode, data, hooks, load=None, **options):
    settings = {"loss": toy.loss, "optimizer": duet.SGD(lr=0.1), "default_hooks": False, "max_epochs": 3, **options}
    trainer = duet.make_trainer(mode, toy.model(), settings.pop("loss"), hooks=hooks, **settings)
    if load:
        trainer.load(load)
    trainer.fit(data)
    return trainer


@pytest.mark.parametrize("stop", [1, 11, 12, 13, 35])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_schedules_and_epochs_are_those_of_the_unbroken_run(mode, stop, tmp_path, capfd):
    data = toy.batches(12)
    options = {"schedules": [duet.Cosine()]}
    average = lambda: duet.EMAHook(momentum=0.1, begin_epoch=2)
    whole, first, second = Noting(), Noting(stop), Noting()
    torch.manual_seed(1)
    expected = trained(mode, data, [whole, average()], **options)
    torch.manual_seed(1)
    saved = trained(mode, data, [first, average()], **options).save(str(tmp_path))
    torch.manual_seed(2)
    capfd.readouterr()
    resumed = trained(mode, data, [second, average()], saved, **options)
    assert first.lr + second.lr == whole.lr and len(whole.lr) == 36
    assert first.epochs + second.epochs == whole.epochs
    toy.assert_same_bits({**expected.state_dict()}, {**resumed.state_dict()})
    assert "are not those of epochs" not in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_run_goes_on_after_an_error_where_it_was(mode):
    class Fails(Noting):
        def after_train_iter(self, run):
            super().after_train_iter(run)
            if run.progress.step == 13 and self.stop == 0:
                self.stop = -1
                raise RuntimeError("planted")

    whole, broken = Noting(), Fails()
    torch.manual_seed(1)
    expected = trained(mode, toy.batches(12), [whole], schedules=[duet.Cosine()])
    torch.manual_seed(1)
    trainer = duet.make_trainer(
        mode, toy.model(), toy.loss, hooks=[broken], optimizer=duet.SGD(lr=0.1), default_hooks=False, max_epochs=3,
        schedules=[duet.Cosine()])  # fmt: skip
    with pytest.raises(RuntimeError, match="planted"):
        trainer.fit(toy.batches(12))
    trainer.fit(toy.batches(12))
    assert broken.lr == whole.lr
    toy.assert_same_bits(expected.model.state_dict(), trainer.model.state_dict())


class Rows(Dataset):
    """Samples that are another at each look, from the generator called `kind`."""

    def __init__(self, kind=None):
        self.kind, self.own = kind, numpy.random.default_rng(3)
        batch = toy.batches(1, size=48)[0]
        self.rows = list(zip(batch["x"], batch["y"]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x, y = self.rows[i]
        draw = {"numpy": numpy.random.rand, "python": random.random, "own": self.own.random, "torch": lambda: torch.rand(())}
        return {"x": x * float(draw[self.kind]()) if self.kind else x, "y": y}


def drawing_loss(model, batch):
    return toy.loss(model, batch) * (0.5 + random.random() + numpy.random.rand())


def generator():
    return torch.Generator().manual_seed(5)


def jittered(state, rows):
    batch = torch.utils.data.default_collate(rows)
    return {**batch, "x": batch["x"] * state["rng"].random()}


def jittering(rng):
    return lambda rows: jittered({"rng": rng}, rows)


class Stateful:
    """Orders its batches by its own generator and by the epochs that it has counted."""

    def __init__(self, batches):
        self.batches, self.rng, self.epoch, self.order = batches, random.Random(3), 0, []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        if not self.order:
            self.order = self.rng.sample(range(len(self)), len(self))
        while self.order:
            batch = self.batches[self.order.pop()]
            yield {**batch, "x": batch["x"] * (1 + self.epoch)}
        self.epoch += 1

    def state_dict(self):
        return {"epoch": torch.tensor(self.epoch), "order": self.order[:]}

    def load_state_dict(self, state):
        self.epoch, self.order = int(state["epoch"]), state["order"][:]


shared_rng = random.Random(4)


def jittered_by_global(rows):
    return jittered({"rng": shared_rng}, rows)


class Shared(Rows):
    """Draws from what its class has."""

    rng = numpy.random.default_rng(5)

    def __getitem__(self, i):
        row = super().__getitem__(i)
        return {**row, "x": row["x"] * self.rng.random()}


def stateful_loader():
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


RANDOM = {
    "torch": lambda: {"data": DataLoader(Rows("torch"), 4, shuffle=True)},
    "lasting workers": lambda: {"data": DataLoader(Rows(), 4, shuffle=True, num_workers=1, persistent_workers=True)},
    "loader": lambda: {"data": DataLoader(Rows(), 4, shuffle=True, generator=generator())},
    "sampler": lambda: {"data": DataLoader(Rows(), 4, sampler=RandomSampler(Rows(), generator=generator()))},
    "numpy": lambda: {"data": DataLoader(Rows("numpy"), 4, shuffle=True)},
    "python": lambda: {"data": DataLoader(Rows("python"), 4)},
    "own": lambda: {"data": DataLoader(Rows("own"), 4)},
    "nested": lambda: {"data": DataLoader(ConcatDataset([Subset(Rows("own"), range(20))] * 2), 4)},
    "transform": lambda: {"data": DataLoader(Rows(), 4, collate_fn=functools.partial(jittered, {"rng": random.Random(4)}))},
    "closure": lambda: {"data": DataLoader(Rows(), 4, collate_fn=jittering(numpy.random.default_rng(4)))},
    "global": lambda: {"data": DataLoader(Rows(), 4, collate_fn=jittered_by_global), "fresh": lambda: shared_rng.seed(4)},
    "default": lambda: {"data": DataLoader(Rows(), 4, collate_fn=lambda rows, rng=random.Random(4): jittered({"rng": rng}, rows))},
    "class": lambda: {"data": DataLoader(Shared(), 4), "fresh": lambda: setattr(Shared, "rng", numpy.random.default_rng(5))},
    "stateful": lambda: {"data": Stateful(toy.batches(12))},
    "torchdata": lambda: {"data": stateful_loader()(Rows("torch"), 4, shuffle=True), "loss": drawing_loss},
    "torchdata generator": lambda: {"data": stateful_loader()(Rows("own"), 4, shuffle=True, generator=generator())},
    "loss": lambda: {"data": DataLoader(Rows(), 4, shuffle=True), "loss": drawing_loss},
    "numbers alone": lambda: {"data": [{"i": i} for i in range(12)], "loss": lambda m, b: toy.loss(m, toy.batches(12)[b["i"]])},
    "empty first": lambda: {"data": [{"empty": torch.zeros(0), **b} for b in toy.batches(12)], "weight": lambda b: 12.0},
}


# Where it stops concerns the data, which know of no mode.
@pytest.mark.parametrize("mode, stop", [("eager", 12), ("eager", "before an epoch ends"), ("eager", 17), ("graph", 17)])
@pytest.mark.parametrize("kind", RANDOM)
def test_random_numbers_go_on(mode, kind, stop, tmp_path):
    def stopped(**settings):
        if isinstance(stop, int):
            return trained(mode, hooks=[Noting(stop)], **settings).save(str(tmp_path))
        count = len(settings["data"])
        trained(mode, hooks=[duet.CheckpointHook(interval=count, max_keep=3)], work_dir=str(tmp_path), **settings)
        return f"{tmp_path}/checkpoints/step-{count}"

    def seeded(number):
        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(number)
        made = RANDOM[kind]()
        made.pop("fresh", int)()
        return made

    expected = trained(mode, hooks=[], **seeded(1)).model.state_dict()
    saved = stopped(**seeded(1))
    resumed = trained(mode, hooks=[], load=saved, **seeded(2)).model.state_dict()
    toy.assert_same_bits(expected, resumed)


class Once:
    """Gives batches for good, and their numbers to `seen`; in the middle of an epoch it cannot begin anew."""

    def __init__(self, batches, seen):
        self.batches, self.seen = iter(batches), seen

    def __len__(self):
        return 12

    def __iter__(self):
        return self

    def __next__(self):
        batch = next(self.batches)
        self.seen.append(batch["i"])
        return batch


@pytest.mark.parametrize("bad", [7, 11])
def test_a_rollback_draws_no_batch_again(bad, tmp_path):
    seen, batches = [], [{"i": i, **batch} for i, batch in enumerate(toy.batches(12))]
    batches[bad]["x"] = batches[bad]["x"] * float("nan")
    guards = [duet.NaNGuardHook(interval=1, action="rollback"), duet.CheckpointHook(interval=2)]
    trainer = trained("eager", Once(batches, seen), guards, max_epochs=1, work_dir=str(tmp_path))
    assert seen == list(range(12)) and trainer.progress.step == (bad - 1) // 2 * 2 + 11 - bad


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_epochs_after_a_rollback_have_orders_of_their_own(mode, tmp_path):
    class Spoils(duet.Hook):
        def before_train_iter(self, run):
            orders.append(run.batches[0]["i"].tolist())
            if len(orders) == 6:
                run.batches[0]["x"].fill_(float("nan"))

    orders, batch = [], toy.batches(1, size=16)[0]
    rows = [{"i": torch.tensor(i), "x": batch["x"][i], "y": batch["y"][i]} for i in range(16)]
    guards = [duet.NaNGuardHook(interval=1, action="rollback"), duet.CheckpointHook(interval=4), Spoils()]
    trained(mode, DataLoader(rows, 4, shuffle=True), guards, max_epochs=4, work_dir=str(tmp_path))
    epochs = [str(orders[i : i + 4]) for i in range(0, 16, 4)]
    assert len(orders) == 16 and len(set(epochs)) == 4


def test_a_loader_whose_state_a_checkpoint_cannot_hold_is_an_error_at_once(tmp_path):
    class Foreign(Stateful):
        def state_dict(self):
            return {**super().state_dict(), "numpy": numpy.ones(2)}

    with pytest.raises(duet.CheckpointError, match="state_dict.. of Foreign that a checkpoint cannot hold .*numpy"):
        trained("eager", Foreign(toy.batches(12)), [], max_epochs=1)


@pytest.mark.parametrize("size", [3, 6, 12])
def test_another_batch_size_goes_on_at_the_next_sample(size, tmp_path):
    def loss(model, batch):
        seen.extend(batch["i"].tolist())
        return toy.loss(model, batch)

    seen = []
    rows = [{"i": i, **{name: tensor[0] for name, tensor in toy.batches(1).pop().items()}} for i in range(24)]
    saved = trained("eager", DataLoader(rows, 4), [Noting(3)], max_epochs=1).save(str(tmp_path))
    trained("eager", DataLoader(rows, size), [], saved, max_epochs=1, loss=loss)
    assert seen == list(range(12, 24))


def test_a_load_between_steps_goes_back_in_the_data(tmp_path):
    class Loads(duet.Hook):
        loaded = False

        def after_train_iter(self, run):
            if run.progress.step == 8 and not self.loaded:
                self.loaded = True
                trainer.load(saved)

    def loss(model, batch):
        seen.append(batch["i"])
        return toy.loss(model, batch)

    seen, data = [], [{"i": i, **batch} for i, batch in enumerate(toy.batches(12))]
    saved = trained("eager", data, [Noting(3)], max_epochs=1).save(str(tmp_path))
    trainer = duet.make_trainer(
        "eager", toy.model(), loss, hooks=[Loads()], optimizer=duet.SGD(lr=0.1), default_hooks=False, max_epochs=1)  # fmt: skip
    trainer.fit(data)
    assert seen == [*range(8), *range(3, 12)]


def test_other_data_in_the_middle_of_an_epoch_are_refused(tmp_path):
    rows = [{name: tensor[0] for name, tensor in toy.batches(1).pop().items()} for _ in range(24)]
    saved = trained("eager", DataLoader(rows, 4), [Noting(3)]).save(str(tmp_path))
    with pytest.raises(duet.CheckpointError, match="found a dataset of 20 samples in the middle of epoch 0, expected the 24"):
        trained("eager", DataLoader(rows[:20], 4), [], saved)
    trainer = trained("eager", DataLoader(rows, 4), [Noting(3)])
    for _ in range(2):
        with pytest.raises(duet.CheckpointError, match="20 samples"):
            trainer.fit(DataLoader(rows[:20], 4))
    trainer.fit(DataLoader(rows, 4))
    assert trainer.progress.step == 18


@pytest.mark.parametrize("place", ["before_train_iter", "loss", "after_backward", "before_optimizer_step", "in_step", "after_optimizer_step"])
@pytest.mark.parametrize("member", ["load", "load_state_dict", "load_weights", "save", "set_mode", "finish"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_step_cannot_be_loaded_over(mode, member, place, tmp_path):
    def act():
        steps.append(None)
        if len(steps) == 6:
            arguments = {"load_state_dict": [state], "set_mode": ["eager"], "finish": []}.get(member, [saved])
            with pytest.raises(duet.ConfigError, match=rf"{member}\(\) called within a step"):
                getattr(trainer, member)(*arguments)

    class Acts(duet.Hook):
        pass

    if place != "loss":
        setattr(Acts, place, lambda self, context: act())
    if place == "before_train_iter" and member in ("set_mode", "load_weights"):
        return  # the data have no part in it
    steps, batches = [], toy.batches(10)
    loss = lambda model, batch: (act() if place == "loss" else None, toy.loss(model, batch))[1]
    trainer = duet.make_trainer(
        mode, nn.Linear(8, 3), loss, optimizer=duet.AdamW(lr=0.01), default_hooks=False, check="every",
        hooks=[] if place == "loss" else [Acts()])  # fmt: skip
    saved, state = trainer.save(str(tmp_path)), {name: value for name, value in trainer.state_dict().items()}
    for batch in batches:
        trainer.step(batch)
    assert trainer.progress.step == 10 and len(steps) >= 6
