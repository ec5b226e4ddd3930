"""Models, data and PyTorch's own loop, against which duet is held."""

import copy

import torch
from torch import nn


class Net(nn.Module):
    """A bit of everything: normalization with statistics, dropout, a parameter of its own."""

    def __init__(self, inputs=8, classes=3):
        super().__init__()
        self.hidden = nn.Linear(inputs, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.ones(16))
        self.output = nn.Linear(16, classes)

    def forward(self, x):
        return self.output(self.drop(torch.tanh(self.norm(self.hidden(x)))) * self.scale)


def batches(count, size=12, inputs=8, classes=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(size, inputs, generator=generator),
            "y": torch.randint(classes, (size,), generator=generator),
        }
        for _ in range(count)
    ]


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def model():
    torch.manual_seed(0)
    return Net()


def twin(module):
    return copy.deepcopy(module)


def loop_step(module, loss_function, optimizer, batch, clip=None):
    """What duet.graph_step stands for."""
    optimizer.zero_grad()
    value = loss_function(module, batch)
    value.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
    optimizer.step()
    return value.detach()


def assert_same_bits(a, b):
    """Of two state_dicts: every tensor, every number."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same_bits(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same_bits(x, y)
    else:
        assert a == b


def captured(reports):
    return [report["kind"] for report in reports if report["state"] == "captured"]
