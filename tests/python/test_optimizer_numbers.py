"""Hyper-parameters in param_groups: Python's numbers, NumPy's and tensors, that change from step to step."""

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


def numbers_of(optimizer):
    names = ("lr", "weight_decay", "momentum", "dampening", "eps", "lr_decay", "alpha")
    return [name for name in names if name in optimizer.param_groups[0]]


def set_number(group, name, number):
    """As schedulers do: a tensor is filled."""
    if isinstance(number, torch.Tensor) and isinstance(group[name], torch.Tensor):
        group[name].fill_(number.item())
    else:
        group[name] = number


def check(name, kind, change, steps=24, dtype=torch.float32):
    make, options = OPTIMIZERS[name]
    models = [toy.model().to(dtype) for _ in range(2)]
    optimizers = [make(model.parameters(), lr=0.01, **options) for model in models]
    step = duet.graph_step(models[0], toy.loss, optimizers[0], check="every")
    batches = [{"x": batch["x"].to(dtype), "y": batch["y"]} for batch in toy.batches(5)]
    for run in (0, 1):
        torch.manual_seed(3)
        for i in range(steps):
            change(optimizers[run].param_groups[0], i, KINDS[kind])
            batch = batches[i % 5]
            step(batch) if run == 0 else toy.loop_step(models[1], toy.loss, optimizers[1], batch)
    toy.assert_same_bits(models[0].state_dict(), models[1].state_dict())
    toy.assert_same_bits(list(optimizers[0].state.values()), list(optimizers[1].state.values()))
    reports = step.report()
    assert [report["state"] for report in reports] == ["captured"], reports
    assert reports[0]["replays"] == steps - 2
    return step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_of_any_kind_is_followed_by_one_recording(name, kind):
    check(name, kind, lambda group, i, make: set_number(group, "lr", make(0.01 / (i + 1))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "element" not in kind])  # PyTorch takes these for lr alone
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_so_is_every_other_number(name, kind, dtype):
    def change(group, i, make):
        for number in ("lr", "weight_decay", "momentum", "dampening", "eps", "lr_decay", "alpha"):
            usable = group.get(number) and not ("fused" in name and "tensor" in kind and number != "lr")
            if usable and not (number == "alpha" and "tensor" in kind):
                before = float(group[number])
                set_number(group, number, make(before * (0.97 if i % 2 else 1.01)))

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


@pytest.mark.parametrize("bad", [torch.tensor(0.01, dtype=torch.bfloat16), torch.tensor(0.01, requires_grad=True), None])
def test_one_that_cannot_be_followed_is_an_error(bad):
    model = toy.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = duet.graph_step(model, toy.loss, optimizer)
    step(toy.batches(1)[0])
    optimizer.param_groups[0]["lr"] = bad
    with pytest.raises(duet.ConfigError, match=r"\[graph_step\] lr of the optimizer has become .*new graph_step"):
        step(toy.batches(1)[0])


@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.Adamax, torch.optim.RAdam])
def test_a_tensor_rate_of_an_optimizer_that_is_recorded_as_it_is_makes_one_signature_and_one_warning(make, capfd):
    models = [toy.model() for _ in range(2)]
    optimizers = [make(m.parameters(), lr=torch.tensor(0.01)) for m in models]
    step = duet.graph_step(models[0], toy.loss, optimizers[0])
    for run in (0, 1):
        torch.manual_seed(3)
        for i in range(30):
            optimizers[run].param_groups[0]["lr"].fill_(0.01 / (i + 1))
            batch = toy.batches(1)[0]
            step(batch) if run == 0 else toy.loop_step(models[1], toy.loss, optimizers[1], batch)
    toy.assert_same_bits(models[0].state_dict(), models[1].state_dict())
    assert len(step.report()) == 1
    assert capfd.readouterr().err.count("warning") <= 1


def test_a_reason_is_warned_of_once_with_its_line_and_in_the_words_of_the_call(capfd):
    def loss(model, batch):
        return toy.loss(model, batch) * (2 if batch["x"].abs().nonzero().shape[0] > 0 else 1)  # the line

    module = toy.model()
    step = duet.graph_step(module, loss, torch.optim.SGD(module.parameters(), lr=0.1))
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

    class Hidden:  # attributes of classes are not part of the signature
        factor = 1.0

    def loss(model, batch):
        return toy.loss(model, batch) * Hidden.factor

    if entry == "graph_step":
        step = duet.graph_step(module, loss, torch.optim.SGD(module.parameters(), lr=0.1), check="every")
    else:
        step = duet.GraphTrainer(module, loss, optimizer=duet.SGD(lr=0.1), default_hooks=False, check="every").step
    for i in range(12):
        Hidden.factor = 1.0 + i // 4
        step(toy.batches(1)[0])
    told = capfd.readouterr().err
    assert "graph_key" in told and f"[{entry}]" in told, told
    assert "Task::" not in told and "training_step" not in told and "graph.check" not in told
