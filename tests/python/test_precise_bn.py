"""PreciseBNHook from Python: the statistics of its batches for a validation and what is saved of it, and none for training."""

import pytest
import torch

import duet
import toy


def make(mode, model, hook):
    return duet.make_trainer(
        mode, model, toy.loss, optimizer=duet.SGD(lr=0.1), max_steps=9, default_hooks=False, hooks=[hook]
    )


def test_statistics_are_those_of_its_batches(mode):
    data, model = toy.batches(6), toy.model()
    trainer = make(mode, model, duet.PreciseBNHook(data, num_iter=5))
    with torch.no_grad():
        seen = torch.cat([model.hidden(batch["x"]) for batch in data[:5]])
        first = model.hidden(data[0]["x"])
    trainer.validate(data)
    torch.testing.assert_close(model.norm.running_mean, seen.mean(0))
    torch.testing.assert_close(model.norm.running_var, seen.var(0, unbiased=False))
    trainer.step(data[0])
    torch.testing.assert_close(model.norm.running_mean, 0.1 * first.mean(0))
    torch.testing.assert_close(model.norm.running_var, 0.9 + 0.1 * first.var(0))


def test_mistakes_are_named(mode):
    with pytest.raises(duet.ConfigError, match="num_iter"):
        make(mode, toy.model(), duet.PreciseBNHook(toy.batches(1), num_iter=0))
    with pytest.raises(TypeError):
        duet.PreciseBNHook(num_iter=3)
