"""duet's kernels of torch.optim.Adam, AdamW and SGD give the bits of torch.optim."""

import functools

import numpy
import pytest
import torch

import duet

LENGTHS = [(64, 64), (10,), (1,), (37,), (1500,), (129, 33)]


class Weights(torch.nn.Module):
    def __init__(self, lengths=LENGTHS):
        super().__init__()
        torch.manual_seed(3)
        self.weights = torch.nn.ParameterList(torch.randn(length) for length in lengths)


def loss(model, batch):
    return sum((weight * batch["x"] * (i + 1)).square().mean() for i, weight in enumerate(model.weights))


def bits(tensor):
    return tensor.detach().contiguous().view(torch.int32)


class Pair:
    """One model in graph mode, its twin in torch.optim's own loop."""

    def __init__(self, kind, lengths=LENGTHS, prepare=lambda optimizer: None, of=loss, **options):
        self.kind = "SGD" if kind == "SGD" else "AdamW"
        self.models = [Weights(lengths), Weights(lengths)]
        self.optimizers = [getattr(torch.optim, kind)(model.parameters(), **options) for model in self.models]
        for optimizer in self.optimizers:
            prepare(optimizer)
        self.loss = of
        self.step = duet.graph_step(self.models[0], of, self.optimizers[0], check="off", verify_interval=0, fuse_after=0)

    def run(self, steps, x=lambda n: torch.tensor(1.0 + n)):
        for n in range(steps):
            batch = {"x": x(n)}
            self.step(batch)
            self.optimizers[1].zero_grad()
            self.loss(self.models[1], batch).backward()
            self.optimizers[1].step()
        self.compare()

    def compare(self):
        for ours, theirs in zip(self.models[0].weights, self.models[1].weights):
            assert torch.equal(bits(ours), bits(theirs))
            state, expected = self.optimizers[0].state[ours], self.optimizers[1].state[theirs]
            assert state.keys() == expected.keys()
            for name, value in expected.items():
                assert value is None or torch.equal(bits(state[name]), bits(value)), name

    def has_kernel(self):
        return "bit-exact " + self.kind in str(self.step.explain({"x": torch.tensor(1.0)}))


@functools.cache
def has_kernels():
    return Pair("AdamW", [(8,)], fused=True).has_kernel()


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{}, {"betas": (0.3, 0.99), "eps": 0}, {"lr": 0.1, "weight_decay": 0.5}])
def test_bits_of_torch(kind, fused, options, threads):
    if threads > 1 and options:
        return  # they share the numbers out, whatever is computed of them
    pair = Pair(kind, LENGTHS + [(300, 1024), (123, 457)], fused=fused, **options)
    pair.run(8)
    if not fused and threads > 1:
        return  # ATen's threads share the last parameter so that a part ends within vectors
    assert pair.has_kernel() == has_kernels()


SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"lr": 0.3, "weight_decay": 0.5}, SGD, SGD | {"nesterov": True},
                                     SGD | {"dampening": 0.3}])
def test_bits_of_sgd(options, threads):
    pair = Pair("SGD", LENGTHS + [(300, 1024)], **options)
    pair.run(8, lambda n: torch.tensor(1.0 / (1 + n)))
    assert pair.has_kernel() == has_kernels()


@pytest.mark.parametrize("kind, options", [("AdamW", {}), ("SGD", SGD)])
def test_numbers_of_any_kind(kind, options):
    pair = Pair(kind, **options)

    def extreme(n):
        x = torch.randn(()) * 10.0 ** (n * 3 - 20)
        return x if n < 12 else torch.tensor([0.0, float("inf"), float("nan")][n - 12])

    pair.run(15, extreme)


def negative_squares(optimizer):
    for weight in optimizer.param_groups[0]["params"]:
        square = torch.linspace(-1, 1, weight.numel()).reshape(weight.shape)
        optimizer.state[weight] = {"step": torch.tensor(4.0), "exp_avg": torch.ones_like(weight), "exp_avg_sq": square}


def uneven_steps(optimizer):
    negative_squares(optimizer)
    optimizer.state[optimizer.param_groups[0]["params"][1]]["step"].fill_(9.0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_gradients_of_either_zero(kind, fused):
    def run(module, batch):
        return sum((weight * batch["x"]).sum() for weight in module.weights)

    pair = Pair(kind, betas=(0.0, 0.9), fused=fused, of=run)
    for _ in range(8):
        pair.run(2, lambda n: torch.tensor([-1.0, -0.0][n]))
        pair.run(2, lambda n: torch.tensor([1.0, 0.0][n]))


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_number_too_large_is_an_error_as_in_torch(kind):
    pair = Pair(kind, lr=0.1)
    pair.run(4)
    for optimizer in pair.optimizers:
        optimizer.param_groups[0]["lr"] = 1e300
    with pytest.raises(RuntimeError, match="overflow"):
        pair.step({"x": torch.tensor(1.0)})
    with pytest.raises(RuntimeError, match="overflow"):
        pair.optimizers[1].step()


@pytest.mark.parametrize("prepare", [negative_squares, uneven_steps])
@pytest.mark.parametrize("fused", [False, True])
def test_loaded_state(prepare, fused):
    Pair("AdamW", prepare=prepare, fused=fused).run(6)


@pytest.mark.parametrize("kind, options", [("AdamW", {}), ("SGD", SGD)])
def test_numbers_that_change(kind, options):
    pair = Pair(kind, **options)
    pair.run(4)
    for value in (0.5, numpy.float32(0.01), torch.tensor(0.02), 1e-3):
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"] = value
        pair.run(3)
    for optimizer in pair.optimizers:
        optimizer.param_groups[0].update(weight_decay=0.0, **({"momentum": 0} if kind == "SGD" else {"betas": (0.8, 0.9)}))
    pair.run(3)


@pytest.mark.parametrize("kind, options", [("AdamW", {"amsgrad": True}), ("AdamW", {"maximize": True}),
                                           ("SGD", SGD | {"maximize": True})])
def test_left_to_torch(kind, options):
    pair = Pair(kind, **options)
    pair.run(5)
    assert not pair.has_kernel()
