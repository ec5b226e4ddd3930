"""A model and loops for tests of a step's host code."""

import torch
from torch import nn
from torch.nn import functional as F

import toy


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.scalar = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.layer(x)


def both(make_model, loss, steps=40, before=lambda *_: None, trained=nn.Module.parameters, **options):
    """Trains with duet's step and with PyTorch's loop, whose bits it must have; gives duet's report."""
    now = {}  # what the loop tells the loss

    def run(step, module, optimizer):
        losses = []
        for n, batch in enumerate(toy.batches(steps)):
            now["n"] = n
            before(n, module, now, batch)
            losses.append(step(batch))
        now.clear()
        return losses

    def sgd(module):
        return torch.optim.SGD(trained(module), lr=0.05, momentum=0.9)

    return toy.same_as_loop(run, lambda module, batch: loss(module, batch, now), make_model, sgd, **options).report()


def cross_entropy(module, batch, now):
    return F.cross_entropy(module(batch["x"]), batch["y"])
