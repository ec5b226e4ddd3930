"""Batches as people have them."""

import collections
import dataclasses
import gc
import types
import typing
import weakref

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


class Bag(list):
    def __init__(self, items, *, scale=1.0):
        super().__init__(items)
        self.scale = scale


class Both(tuple):
    pass


def both(x, y):
    made = Both((x, y))
    made.scale = 2.0
    return made


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As Hugging Face's ModelOutput: its fields are items too."""

    x: torch.Tensor = None
    y: torch.Tensor = None

    def __post_init__(self):
        self.update(x=self.x, y=self.y)


@dataclasses.dataclass
class Masked:
    kind: typing.ClassVar[object] = object()
    x: torch.Tensor
    y: torch.Tensor
    scale: dataclasses.InitVar[float]

    def __post_init__(self, scale):
        self.mask = torch.ones(len(self.x)) * scale


@dataclasses.dataclass(slots=True)
class Slots:
    kind: typing.ClassVar[int] = 1
    x: torch.Tensor
    y: torch.Tensor


def of_dict(batch):
    return batch["x"], batch["y"]


def where(holds, pair):
    assert holds
    return pair


FORMS = {
    "dict": (lambda x, y: {"x": x, "y": y}, of_dict),
    "tuple": (lambda x, y: (x, y), lambda batch: batch),
    "list": (lambda x, y: [x, y], lambda batch: batch),
    "named tuple": (lambda x, y: Pair(x, y), lambda batch: (batch.x, batch.y)),
    "dataclass": (lambda x, y: Sample(x, y), lambda batch: (batch.x, batch.y)),
    "list with an attribute": (lambda x, y: Bag([x, y], scale=2.0), lambda batch: where(batch.scale == 2, batch)),
    "tuple with an attribute": (both, lambda batch: where(batch.scale == 2, batch)),
    "dataclass that is a dict": (lambda x, y: Output(x, y), lambda batch: where(len(batch) == 2, batch.values())),
    "dataclass with more attributes": (
        lambda x, y: Masked(x, y, 2.0),
        lambda batch: where((batch.mask == 2).all(), (batch.x, batch.y)),
    ),
    "dataclass with slots": (lambda x, y: Slots(x, y), lambda batch: where(batch.kind == 1, (batch.x, batch.y))),
    "read-only mapping": (lambda x, y: types.MappingProxyType({"x": x, "y": y}), of_dict),
    "mapping": (lambda x, y: Encoding({"x": x, "y": y}, "text"), of_dict),
    "nested": (
        lambda x, y: {"in": [{"x": x}, None, 3], "out": (y, "label")},
        lambda batch: (batch["in"][0]["x"], batch["out"][0]),
    ),
    "arrays": (lambda x, y: {"x": x.numpy(), "y": y.numpy()}, lambda batch: map(torch.as_tensor, of_dict(batch))),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_step_gets_the_batch_as_it_was_given(form, mode):
    make, take = FORMS[form]
    given = []

    def loss(model, batch):
        given.append(batch)
        x, y = take(batch)
        return torch.nn.functional.cross_entropy(model(x), y)

    data = [make(batch["x"], batch["y"]) for batch in toy.batches(10)]
    step = toy.same_as_loop(toy.over(data), loss, optimizer=toy.sgd, mode=mode)
    assert all(type(batch) is type(data[0]) for batch in given)
    if form == "mapping":
        assert given[-1].kind == "text"
    if form == "arrays":  # duet makes tensors of them
        assert isinstance(given[-1]["x"], torch.Tensor)
    if mode == "graph":
        assert toy.captured(step.report()) == ["step"], step.report()


def squares(model, x):
    return model(x).square().mean()


def test_a_batch_may_be_a_tensor_and_lengths_have_a_signature_each():
    module = toy.model()
    step = duet.graph_step(module, squares, toy.sgd(module))
    for size in (4, 6) * 4:
        assert step(torch.ones(size, 8)).dim() == 0
    reports = step.report()
    assert [report["state"] for report in reports] == ["captured", "captured"]
    assert "[4, 8]" in reports[0]["signature"] and "[6, 8]" in reports[1]["signature"]


def test_numbers_of_a_batch_are_told_apart_by_type():
    module = toy.model().eval()
    step = duet.graph_step(
        module, lambda model, batch: batch["factor"] * squares(model, batch["x"]), torch.optim.SGD(module.parameters(), lr=0.0)
    )
    x = torch.ones(4, 8)
    for factor in (1.0, 1, True, 3.0, float("nan")) * 3:
        expected = factor * squares(module, x)
        torch.testing.assert_close(step({"x": x, "factor": factor}), expected.detach(), rtol=0, atol=0, equal_nan=True)
    assert len(step.report()) == 5


def test_values_of_many_types_belong_to_the_signature():
    values = (np.int64(3), 2j, torch.float32, torch.device("cpu"), slice(1, 2), range(3), torch.Size([2, 3]))
    given = []

    def loss(model, batch):
        given.append(batch["value"])
        return toy.loss(model, batch)

    module = toy.model()
    step = duet.graph_step(module, loss, toy.sgd(module))
    for value in values:
        step({**toy.batches(1)[0], "value": value})
        assert type(given[-1]) is type(value) and given[-1] == value
    assert len(step.report()) == len(values)


@pytest.mark.parametrize(
    "batch, text",
    [
        ({"x": torch.ones(2), "file": open}, "'file' is of type builtin_function_or_method"),
        ({"x": {"y": object()}}, "'x.y' is of type object"),
        ({"x": torch.ones(2), "names": np.array(["a", "b"])}, "'names' is of type ndarray of dtype <U1"),
        ({"x": toy.model().scale * 2}, "'x' is the result of a computation with gradients"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, "two tensors of the batch are called 'a.b'"),
    ],
)
def test_what_cannot_be_a_batch_is_named(batch, text):
    module = toy.model()
    step = duet.graph_step(module, toy.loss, toy.sgd(module))
    with pytest.raises(duet.DataError, match=text):
        step(batch)


def test_batches_are_let_go():
    module = toy.model()
    step = duet.graph_step(module, toy.loss, toy.sgd(module))
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


def test_a_batch_may_be_differentiated_by():
    """As in physics-informed networks: the equation holds derivatives of the model by its inputs."""

    def loss(model, batch):
        u = model(batch["x"])
        (slope,) = torch.autograd.grad(u.sum(), batch["x"], create_graph=True)
        return ((slope - batch["slope"]) ** 2).mean()

    def run(step, module, optimizer):
        points = [torch.rand(20, 2, requires_grad=True) for _ in range(30)]
        return [step({"x": x, "slope": torch.ones(20, 2)}) for x in points]

    def make():
        return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    step = toy.same_as_loop(run, loss, make)
    assert toy.captured(step.report()) == ["step"], step.report()


def test_a_batch_needs_no_tensor():
    def loss(model, batch):
        return squares(model, torch.rand(8, 8)) * batch["factor"]

    step = toy.same_as_loop(toy.over([{"factor": 2}] * 20), loss)
    assert toy.captured(step.report()) == ["step"], step.report()
    trainer = duet.GraphTrainer(toy.model(), loss, default_hooks=False)
    assert trainer.step({"factor": 1}).item() > 0


def test_jagged_tensors_are_batches_of_trainers():
    losses = []
    for mode in ("eager", "graph"):
        torch.manual_seed(0)
        trainer = duet.make_trainer(mode, torch.nn.Linear(6, 3), lambda model, batch: model(batch["x"]).values().square().mean(), optimizer=duet.SGD(lr=0.1))
        rows = [torch.randn(n, 6) for n in (5, 4, 2)]
        losses.append(torch.stack([trainer.step({"x": torch.nested.nested_tensor(rows, layout=torch.jagged)}) for _ in range(4)]))
    assert torch.equal(*losses) and losses[0][3] < losses[0][0]
