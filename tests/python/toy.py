"""Models, data and PyTorch's own loop, against which duet is held."""

import copy
import functools

import torch
from torch import nn

import duet


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


def forward(model, batch):
    return model(batch["x"])


def loss_of(prediction, batch):
    return nn.functional.cross_entropy(prediction, batch["y"])


def loss(model, batch):
    return loss_of(model(batch["x"]), batch)


def model():
    torch.manual_seed(0)
    return Net()


def twin(module):
    return copy.deepcopy(module)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=1e-2)


def loop_step(module, loss_function, optimizer, batch, clip=None):
    """What duet.graph_step stands for; `clip` is called with the parameters."""
    optimizer.zero_grad()
    value = loss_function(module, batch)
    value.backward()
    if clip is not None:
        clip(module.parameters())
    optimizer.step()
    return value.detach()


def over(batches):
    return lambda step, module, optimizer: [step(batch) for batch in batches]


UNCHECKED = {"check": "off", "verify_interval": 0}  # the options by which no check looks at host code


def same_as_loop(run, loss=loss, make=model, optimizer=adam, clip=None, **options):
    """run(step, module, optimizer) with duet's step gives the results, weights and state that it gives with PyTorch's loop, bit
    by bit. Returns duet's step."""
    ends = []
    for kind in ("loop", "duet"):
        torch.manual_seed(0)
        module = make()
        used = optimizer(module)
        if kind == "duet":
            step = duet.graph_step(module, loss, used, **options)
        else:
            step = functools.partial(loop_step, module, loss, used, clip=clip)
        torch.manual_seed(3)
        ends.append((run(step, module, used), module.state_dict(), used.state_dict()))
    assert_same_bits(*ends)
    return step


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


def replays(reports):
    return sum(report["replays"] for report in reports)
