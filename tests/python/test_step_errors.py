"""An op that fails in a step is told with its place; the error of Python that it stands for is its cause."""

import numpy
import pytest
import torch

import duet
import toy

WRONG_WIDTH = {"x": torch.ones(12, 5), "y": torch.zeros(12, dtype=torch.long)}


def make(mode, loss=toy.loss, **options):
    return duet.make_trainer(mode, toy.model(), loss, optimizer=duet.SGD(lr=0.1), default_hooks=False, device="cpu", **options)


def trained(mode):
    trainer = make(mode)
    for batch in toy.batches(5):
        trainer.step(batch)
    return trainer


def test_names_the_batch(mode):
    with pytest.raises(duet.StepError) as caught:
        trained(mode).step(WRONG_WIDTH)
    text = str(caught.value)
    assert text.replace("addmm: ", "", 1).startswith(  # from torch 2.15 on
        "[Task] train step 5: mat1 and mat2 shapes cannot be multiplied (12x5 and 8x16). "
        "Batch: x float32 [12, 5], y int64 [12]. "
    ), text
    assert "\n" not in text
    cause = caught.value.__cause__
    assert type(cause) is RuntimeError and cause.__traceback__ is not None
    assert isinstance(caught.value, duet.ConfigError) and isinstance(caught.value, RuntimeError)


def error_of_first_step(mode, code):
    """What a loss that runs `code` ends a step with."""
    with pytest.raises(BaseException) as caught:  # KeyboardInterrupt too
        make(mode, lambda model, batch: toy.loss(model, batch) + code(batch)).step(toy.batches(1)[0])
    return caught.value


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyError("mine"), KeyboardInterrupt()])
def test_errors_of_python_code_stay_what_they_are(error, mode):
    def fails(batch):
        calls.append(1)
        raise error

    calls = []
    assert error_of_first_step(mode, fails) is error and len(calls) == 1


# What Python's own containers and functions throw without a `raise` in anybody's code.
BETWEEN_OPS = [
    (IndexError, lambda batch: [1.0][3]),
    (IndexError, lambda batch: [].pop()),
    (IndexError, lambda batch: numpy.zeros(2)[5]),
    (KeyError, lambda batch: {}["gone"]),
    (ValueError, lambda batch: int("x")),
    (TypeError, lambda batch: 1.0 + "x"),
    (ZeroDivisionError, lambda batch: 1 / 0),
]


@pytest.mark.parametrize("error, code", BETWEEN_OPS)
def test_an_error_between_ops_stays_what_it_is(error, code, mode):
    assert type(error_of_first_step(mode, code)) is error


def test_an_index_of_a_tensor_is_an_error_of_the_step(mode):
    error = error_of_first_step(mode, lambda batch: batch["x"][99].sum())
    assert isinstance(error, duet.DataError) and "out of bounds for dimension" in str(error)
    assert type(error.__cause__) is IndexError
