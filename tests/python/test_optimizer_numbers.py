"""Hyper-parameters in param_groups: Python's numbers, NumPy's and tensors, that change from step to step."""

import types

import numpy
import pytest
import torch

import duet
import toy

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 1e-2}),
    "sgd fused": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2, "fused": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 1e-2, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 1e-2}),
    "adamw fused": (torch.optim.AdamW, {"weight_decay": 1e-2, "fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5, "weight_decay": 1e-2}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 1e-2, "weight_decay": 1e-2}),
    "adagrad fused": (torch.optim.Adagrad, {"lr_decay": 1e-2, "fused": True}),
}
KINDS = {
    "float": float,
    "float32 tensor": lambda value: torch.tensor(value),
    "float64 tensor": lambda value: torch.tensor(value, dtype=torch.float64),
    "tensor of one element": lambda value: torch.tensor([value]),
    "numpy float32": numpy.float32,
    "numpy float64": numpy.float64,
}


def set_number(group, name, number):
    """As schedulers do: a tensor is filled."""
    if isinstance(number, torch.Tensor) and isinstance(group[name], torch.Tensor):
        group[name].fill_(number.item())
    else:
        group[name] = number


def check(name, kind, change, dtype=torch.float32):
    make, options = OPTIMIZERS[name]
    data = [{"x": batch["x"].to(dtype), "y": batch["y"]} for batch in toy.batches(5)]

    def run(step, module, optimizer):
        losses = []
        for i in range(24):
            change(optimizer.param_groups[0], i, KINDS[kind])
            losses.append(step(data[i % 5]))
        return losses

    step = toy.same_as_loop(
        run, make=lambda: toy.Net().to(dtype), optimizer=lambda m: make(m.parameters(), lr=0.01, **options), check="every"
    )
    reports = step.report()
    assert [(report["state"], report["replays"]) for report in reports] == [("captured", 22)], reports


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_of_any_kind_are_followed_by_one_recording(name, kind, dtype):
    def change(group, i, make):
        for number in ("lr", "weight_decay", "momentum", "dampening", "eps", "lr_decay", "alpha"):
            takes_tensors = number == "lr" or (number != "alpha" and "fused" not in name and "element" not in kind)  # in PyTorch
            if group.get(number) and (takes_tensors or "tensor" not in kind):
                set_number(group, number, make(float(group[number]) * (0.97 if i % 2 else 1.01)))

    check(name, kind, change, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["adam", "adamw", "adamw fused"])
def test_so_are_betas(name, kind):
    def change(group, i, make):
        group["betas"] = (make(0.9 - 0.01 * (i % 7)), make(0.99 - 0.002 * (i % 5)))

    check(name, kind, change)


def test_so_is_a_number_that_changes_its_kind():
    kinds = list(KINDS.values())
    check("adamw", "float", lambda group, i, _: group.update(lr=kinds[i % len(kinds)](0.01 / (i + 1))))


@pytest.mark.parametrize(
    "bad", [torch.tensor(0.01, dtype=torch.bfloat16), torch.tensor(0.01, requires_grad=True), None, -0.01, float("nan")]
)
def test_one_that_cannot_be_followed_is_an_error_at_every_step(bad):
    model = toy.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = duet.graph_step(model, toy.loss, optimizer)
    step(toy.batches(1)[0])
    optimizer.param_groups[0]["lr"] = bad
    message = "lr = .*expected a number >= 0" if isinstance(bad, float) else r"\[graph_step\] lr of the optimizer has become .*new graph_step"
    for _ in range(2):
        with pytest.raises(duet.ConfigError, match=message):
            step(toy.batches(1)[0])


@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.Adamax, torch.optim.RAdam])
def test_a_tensor_rate_of_an_optimizer_that_is_called_apart_makes_one_recording_and_one_warning(make, capfd):
    def run(step, module, optimizer):
        for i, batch in enumerate(toy.batches(30)):
            optimizer.param_groups[0]["lr"].fill_(0.01 / (i + 1))
            step(batch)

    step = toy.same_as_loop(run, optimizer=lambda m: make(m.parameters(), lr=torch.tensor(0.01)))
    assert toy.captured(step.report()) == ["step"] and toy.replays(step.report()) >= 26
    assert capfd.readouterr().err.count("warning") <= 1


def test_a_reason_is_warned_of_once_with_its_line_and_in_the_words_of_the_call(capfd):
    def loss(model, batch):
        return toy.loss(model, batch) * (2 if batch["x"].abs().nonzero().shape[0] > 0 else 1)  # the line

    module = toy.model()
    step = duet.graph_step(module, loss, toy.sgd(module))
    for size in range(4, 12):
        for batch in toy.batches(2, size=size):
            step(batch)
    line = next(i for i, text in enumerate(open(__file__), 1) if text.endswith("# the line\n"))
    place = f"test_optimizer_numbers.py:{line} in loss"
    told = capfd.readouterr().err
    assert told.count("warning") == 1 and "[graph_step]" in told and place in told, told
    assert len(step.report()) == 8 and all(place in report["reason"] for report in step.report())
    assert place in step.explain(toy.batches(1)[0]).text()
    assert ".c:" not in step.explain(toy.batches(1)[0]).text()


@pytest.mark.parametrize("entry", ["graph_step", "GraphTrainer"])
def test_no_message_speaks_of_another_entry_point(entry, capfd):
    module = toy.model()

    hidden = types.SimpleNamespace(factor=1.0)  # by a name that the code does not spell it is not part of the signature

    def loss(model, batch):
        return toy.loss(model, batch) * getattr(hidden, "".join(["fac", "tor"]))

    if entry == "graph_step":
        step = duet.graph_step(module, loss, toy.sgd(module), check="every")
    else:
        step = duet.GraphTrainer(module, loss, optimizer=duet.SGD(lr=0.1), default_hooks=False, check="every").step
    for i in range(12):
        hidden.factor = 1.0 + i // 4
        step(toy.batches(1)[0])
    told = capfd.readouterr().err
    assert "graph_key" in told and f"[{entry}]" in told, told
    assert "Task::" not in told and "training_step" not in told and "graph.check" not in told
