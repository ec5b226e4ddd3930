"""Lengths that vary, and loaders that keep a position of their own."""

import pytest
import torch

import duet
import toy


def test_padding_makes_few_lengths():
    pad = duet.pad_to([4, 8], {"words": 0, "labels": -100})
    batch = pad({"words": torch.ones(2, 5, dtype=torch.long), "labels": torch.ones(2, 5, dtype=torch.long), "ids": torch.ones(2)})
    assert batch["words"].shape == (2, 8) and batch["words"][:, 5:].eq(0).all() and batch["words"][:, :5].eq(1).all()
    assert batch["labels"][:, 5:].eq(-100).all() and batch["ids"].shape == (2,)
    assert pad({"words": torch.ones(2, 4), "labels": torch.ones(2, 4)})["words"].shape == (2, 4)
    with pytest.raises(duet.DataError, match="length 9, expected at most 8"):
        pad({"words": torch.ones(2, 9), "labels": torch.ones(2, 9)})


@pytest.mark.parametrize("count, drop_last", [(103, False), (103, True), (100, True)])
def test_buckets_hold_every_sample_once_and_like_lengths(count, drop_last):
    lengths = torch.randint(1, 500, (count,)).tolist()
    sampler = duet.BucketSampler(lengths, 10, drop_last=drop_last, window=100)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        taken = [index for batch in batches for index in batch]
        assert len(taken) == len(set(taken)) and (drop_last or sorted(taken) == list(range(count)))
        spread = [max(map(lengths.__getitem__, b)) - min(map(lengths.__getitem__, b)) for b in batches]
        assert max(spread) < 200
        epochs.append(batches)
    assert epochs[0] != epochs[1]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


class Stateful:
    """As torchdata's StatefulDataLoader: it knows its position."""

    def __init__(self, batches):
        self.batches, self.position, self.reads = batches, 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        while self.position < len(self.batches):
            self.position += 1
            self.reads += 1
            yield self.batches[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_loader_with_a_state_goes_on_without_reading_what_is_done(mode, tmp_path):
    data = toy.batches(10)

    def trainer(steps):
        return duet.make_trainer(mode, toy.model(), toy.loss, max_steps=steps, default_hooks=False)

    torch.manual_seed(3)
    whole = trainer(10)
    whole.fit(Stateful(data))
    torch.manual_seed(3)
    first = trainer(4)
    first.fit(Stateful(data))
    path = first.save(str(tmp_path))
    second, loader = trainer(10), Stateful(data)
    second.load(path)
    second.fit(loader)
    assert loader.reads == 6
    toy.assert_same_bits(whole.model.state_dict(), second.model.state_dict())


class ItsOwnIterator:
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.position = 0
        return self

    def __next__(self):
        if self.position == len(self.batches):
            raise StopIteration
        self.position += 1
        return self.batches[self.position - 1]


def with_lasting_workers(batches):
    return torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1, persistent_workers=True)


def shuffled_by_lasting_workers(batches):
    return torch.utils.data.DataLoader(batches, batch_size=None, shuffle=True, num_workers=1, persistent_workers=True)


@pytest.mark.parametrize("loader", [ItsOwnIterator, Stateful, with_lasting_workers, shuffled_by_lasting_workers])
def test_a_validation_on_the_training_loader_leaves_the_epoch_where_it_was(loader, mode):
    class Sees(duet.Hook):
        def before_train_iter(self, run):
            seen.append(run.batches[0]["n"].item())

        def before_val_iter(self, run):
            validated.append(run.progress.step)

    seen, validated = [], []
    data = loader([{"n": torch.tensor([n]), **batch} for n, batch in enumerate(toy.batches(5))])
    duet.make_trainer(mode, toy.model(), toy.loss, max_epochs=2, val_interval=2, default_hooks=False, hooks=[Sees()]).fit(data, {"again": data})
    assert sorted(seen[:5]) == sorted(seen[5:]) == list(range(5)) and sorted(set(validated)) == [2, 4, 6, 8, 10]


@pytest.mark.slow
def test_memory_stays_flat_over_many_steps():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    module = toy.model()
    step, data = duet.graph_step(module, toy.loss, toy.adam(module)), toy.batches(4)
    for i in range(3000):
        step(data[i % 4])
    before = resident()
    for i in range(6000):
        step({"x": data[i % 4]["x"].clone(), "y": data[i % 4]["y"]})
    assert resident() - before < 4 << 20
