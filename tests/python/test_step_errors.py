"""An op that fails in a step is told with its place; the error of Python that it stands for is its cause."""

import duet
import numpy
import pytest
import torch

import toy

MODES = ("eager", "graph")


def options():
    return {"optimizer": duet.SGD(lr=0.1), "default_hooks": False, "device": "cpu"}


def trained(mode, loss=toy.loss):
    trainer = duet.make_trainer(mode, toy.model(), loss, **options())
    for batch in toy.batches(5):
        trainer.step(batch)
    return trainer


@pytest.mark.parametrize("mode", MODES)
def test_names_the_batch(mode):
    trainer = trained(mode)
    with pytest.raises(duet.StepError) as caught:
        trainer.step({"x": torch.ones(12, 5), "y": torch.zeros(12, dtype=torch.long)})
    text = str(caught.value)
    assert text.startswith(
        "[Task] train step 5: mat1 and mat2 shapes cannot be multiplied (12x5 and 8x16). "
        "Batch: x float32 [12, 5], y int64 [12]. "
    ), text
    assert "\n" not in text
    cause = caught.value.__cause__
    assert type(cause) is RuntimeError and cause.__traceback__ is not None
    assert isinstance(caught.value, duet.ConfigError) and isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("mode", MODES)
def test_names_a_label_out_of_range(mode):
    trainer = trained(mode)
    bad = toy.batches(1)[0] | {"y": torch.full((12,), 7)}
    with pytest.raises(duet.DataError, match=r"Target 7 is out of bounds"):
        trainer.step(bad)


@pytest.mark.parametrize("mode", MODES)
def test_graph_step_says_the_same(mode):
    module = toy.model()
    step = duet.graph_step(module, toy.loss, torch.optim.SGD(module.parameters(), lr=0.1), mode=mode)
    for batch in toy.batches(4):
        step(batch)
    with pytest.raises(duet.StepError, match=r"\[Task\] step 4: mat1 and mat2 shapes"):
        step({"x": torch.ones(12, 5), "y": torch.zeros(12, dtype=torch.long)})


@pytest.mark.parametrize("mode", MODES)
def test_validation_and_prediction_say_which_batch(mode):
    def loss(prediction, batch):
        return torch.nn.functional.cross_entropy(prediction, batch["y"])

    trainer = duet.make_trainer(mode, toy.model(), loss, forward=lambda model, batch: model(batch["x"]), **options())
    good = toy.batches(3)
    bad = {"x": torch.ones(12, 5), "y": torch.zeros(12, dtype=torch.long)}
    with pytest.raises(duet.StepError, match=r"validation batch 3: mat1 and mat2 shapes"):
        trainer.validate([*good, bad])
    with pytest.raises(duet.StepError, match=r"prediction batch 0: mat1 and mat2 shapes"):
        trainer.predict(bad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyError("mine"), KeyboardInterrupt()])
def test_errors_of_python_code_stay_what_they_are(mode, error):
    calls = []

    def loss(model, batch):
        calls.append(1)
        raise error

    trainer = duet.make_trainer(mode, toy.model(), loss, **options())
    with pytest.raises(type(error)) as caught:
        trainer.step(toy.batches(1)[0])
    assert caught.value is error and len(calls) == 1


# What Python's own containers and functions throw without a `raise` in anybody's code.
BETWEEN_OPS = [
    (IndexError, lambda: [1.0][3]),
    (IndexError, lambda: (1.0,)[3]),
    (IndexError, lambda: [].pop()),
    (IndexError, lambda: numpy.zeros(2)[5]),
    (KeyError, lambda: {}["gone"]),
    (ValueError, lambda: int("x")),
    (TypeError, lambda: 1.0 + "x"),
    (ZeroDivisionError, lambda: 1 / 0),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error, code", BETWEEN_OPS)
def test_an_error_between_ops_stays_what_it_is(mode, error, code):
    def loss(model, batch):
        return toy.loss(model, batch) * code()

    trainer = duet.make_trainer(mode, toy.model(), loss, **options())
    with pytest.raises(error) as caught:
        trainer.step(toy.batches(1)[0])
    assert type(caught.value) is error


@pytest.mark.parametrize("mode", MODES)
def test_an_index_of_a_tensor_is_an_error_of_the_step(mode):
    def loss(model, batch):
        return toy.loss(model, batch) + batch["x"][99].sum() * 0

    trainer = duet.make_trainer(mode, toy.model(), loss, **options())
    with pytest.raises(duet.DataError, match="out of bounds for dimension") as caught:
        trainer.step(toy.batches(1)[0])
    assert type(caught.value.__cause__) is IndexError


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_calls_backward_is_refused(mode):
    def loss(model, batch):
        value = toy.loss(model, batch)
        value.backward(retain_graph=True)
        return value

    trainer = duet.make_trainer(mode, toy.model(), loss, **options())
    with pytest.raises(duet.ConfigError, match=r"the loss function has called backward\(\).*leave backward\(\) to the trainer"):
        trainer.step(toy.batches(1)[0])
