"""Batches as people have them."""

import collections
import dataclasses

import numpy as np
import pytest
import torch

import duet
import toy

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "some"


class Encoding(collections.UserDict):
    """As Hugging Face's BatchEncoding: a mapping with attributes of its own."""

    def __init__(self, data, kind):
        super().__init__(data)
        self.kind = kind


def of_dict(batch):
    return batch["x"], batch["y"]


FORMS = {
    "dict": (lambda x, y: {"x": x, "y": y}, of_dict),
    "tuple": (lambda x, y: (x, y), lambda batch: batch),
    "list": (lambda x, y: [x, y], lambda batch: batch),
    "named tuple": (lambda x, y: Pair(x, y), lambda batch: (batch.x, batch.y)),
    "dataclass": (lambda x, y: Sample(x, y), lambda batch: (batch.x, batch.y)),
    "mapping": (lambda x, y: Encoding({"x": x, "y": y}, "text"), of_dict),
    "nested": (
        lambda x, y: {"in": [{"x": x}, None, 3], "out": (y, "label")},
        lambda batch: (batch["in"][0]["x"], batch["out"][0]),
    ),
    "arrays": (lambda x, y: {"x": x.numpy(), "y": y.numpy()}, of_dict),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_step_gets_the_batch_as_it_was_given(form, mode):
    make, take = FORMS[form]
    given = []

    def loss(model, batch):
        given.append(batch)
        x, y = take(batch)
        return torch.nn.functional.cross_entropy(model(x), y)

    ours, theirs = toy.model(), toy.model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    step = duet.graph_step(ours, loss, optimizers[0], mode=mode)
    data = toy.batches(10)
    torch.manual_seed(3)
    for batch in data:
        step(make(batch["x"], batch["y"]))
    torch.manual_seed(3)
    for batch in data:
        toy.loop_step(theirs, toy.loss, optimizers[1], batch)
    toy.assert_same_bits(ours.state_dict(), theirs.state_dict())
    wanted = make(data[0]["x"], data[0]["y"])
    assert type(given[0]) is type(wanted)
    if isinstance(wanted, Encoding):
        assert given[0].kind == "text"
    if mode == "graph":
        assert toy.captured(step.report()) == ["step"], step.report()


def test_a_single_tensor_is_a_batch():
    module = toy.model()
    step = duet.graph_step(module, lambda m, x: m(x).square().mean(), torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(4):
        assert step(torch.ones(4, 8)).dim() == 0


def test_values_that_are_no_tensors_are_part_of_the_signature():
    module = toy.model()

    def loss(model, batch):
        return batch["factor"] * model(batch["x"]).square().mean()

    step = duet.graph_step(module, loss, torch.optim.SGD(module.parameters(), lr=0.0))
    module.eval()
    x = torch.ones(4, 8)
    for factor in (1.0, 1, True, 3.0, float("nan")) * 3:
        value = step({"x": x, "factor": factor})
        expected = factor * module(x).square().mean()
        assert torch.equal(value, expected.detach()) or bool(value.isnan() & expected.isnan())
    assert len(step.report()) == 5


def test_lengths_that_vary_have_a_signature_each():
    module = toy.model()
    step = duet.graph_step(module, lambda m, x: m(x).square().mean(), torch.optim.SGD(module.parameters(), lr=0.1))
    for size in (4, 6, 4, 6, 4, 6, 4, 6):
        step(torch.ones(size, 8))
    reports = step.report()
    assert [report["state"] for report in reports] == ["captured", "captured"]
    assert "[4, 8]" in reports[0]["signature"] and "[6, 8]" in reports[1]["signature"]


@pytest.mark.parametrize(
    "batch, text",
    [
        ({"x": torch.ones(2), "file": open}, "'file' is of type builtin_function_or_method"),
        ({"x": {"y": object()}}, "'x.y' is of type object"),
        ({}, "no tensor"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, "two tensors of the batch are called 'a.b'"),
    ],
)
def test_what_cannot_be_a_batch_is_named(batch, text):
    module = toy.model()
    step = duet.graph_step(module, toy.loss, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(duet.DataError, match=text):
        step(batch)


def test_batches_are_let_go():
    import gc
    import weakref

    module = toy.model()
    step = duet.graph_step(module, toy.loss, torch.optim.SGD(module.parameters(), lr=0.1))
    alive = []
    for _ in range(6):
        batch = toy.batches(1)[0]
        alive.append(weakref.ref(batch["x"]))
        step(batch)
    del batch
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


def test_numpy_scalars_and_torch_loaders_with_workers(mode):
    data = [{"x": b["x"][0], "y": b["y"][0], "weight": np.float32(2)} for b in toy.batches(24)]
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)

    def loss(model, batch):
        assert batch["weight"].shape == (8,)
        return toy.loss(model, batch)

    trainer = duet.make_trainer(mode, toy.model(), loss, max_epochs=3, default_hooks=False)
    trainer.fit(loader)
    assert trainer.progress.step == 9
