"""Settings and modes of the thread around a step, between steps and inside one."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import duet
import toy

STEPS = 24


class CountsOps(TorchDispatchMode):
    """Sees every op below autograd, as counters of FLOPs do."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class CountsCalls(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Doubles(TorchFunctionMode):
    """Changes what a function of the loss gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.nn.functional.cross_entropy else result


@contextlib.contextmanager
def setting(set_to, value, usual):
    set_to(value)
    try:
        yield
    finally:
        set_to(usual)


def saved_tensors(seen):
    def pack(tensor):
        seen.append(tuple(tensor.shape))
        return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor

    def unpack(tensor):
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


MODES = {
    "dispatch_mode": CountsOps,
    "function_mode": CountsCalls,
    "function_mode_that_changes": lambda seen: Doubles(),
    "saved_tensors": saved_tensors,
    "saved_on_cpu": lambda seen: torch.autograd.graph.save_on_cpu(),
    "anomaly": lambda seen: torch.autograd.set_detect_anomaly(True),
    "anomaly_without_nan": lambda seen: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "autocast": lambda seen: torch.autocast("cpu", torch.bfloat16),
    "autocast_without_cache": lambda seen: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "default_dtype": lambda seen: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default_device": lambda seen: torch.device("cpu"),
    "deterministic": lambda seen: setting(torch.use_deterministic_algorithms, True, False),
    "flush_denormal": lambda seen: setting(torch.set_flush_denormal, True, False),
    "precision": lambda seen: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "threads": lambda seen: setting(torch.set_num_threads, 2, 1),
    "mkldnn": lambda seen: torch.backends.mkldnn.flags(enabled=False),
    "no_multithreading": lambda seen: torch.autograd.set_multithreading_enabled(False),
    "forward_ad": lambda seen: torch.autograd.forward_ad.dual_level(),
}


def loss(module, batch):
    logits = module(batch["x"])
    made = torch.ones(3).mean() * 1e-3  # of the default dtype
    return torch.nn.functional.cross_entropy(logits, batch["y"]) + made.to(logits.dtype)


def train(kind, mode, where):
    """Losses, what the mode saw, and the weights of a loop whose steps 10 to 15 run under a mode."""
    torch.manual_seed(1)
    module = toy.model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    seen, losses, now = [], [], [0]

    def loss_fn(module, batch):
        inside = where == "inside" and 10 <= now[0] < 16
        with MODES[mode](seen) if inside else contextlib.nullcontext():
            return loss(module, batch)

    step = duet.graph_step(module, loss_fn, optimizer) if kind == "duet" else None
    for n, batch in enumerate(toy.batches(STEPS)):
        now[0] = n
        around = where == "around" and 10 <= n < 16
        with MODES[mode](seen) if around else contextlib.nullcontext():
            result = step(batch) if step else toy.loop_step(module, loss_fn, optimizer, batch)
        losses.append(float(result))
    return losses, seen, module.state_dict()


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_comes_and_goes_gives_the_bits_of_the_loop(mode, where):
    losses, seen, weights = train("duet", mode, where)
    wanted_losses, wanted_seen, wanted = train("loop", mode, where)
    assert losses == wanted_losses
    toy.assert_same_bits(weights, wanted)
    for call in ("aten.addmm.default", "cross_entropy"):  # of the loss, not of the optimizer
        assert seen.count(call) == wanted_seen.count(call)
    if mode == "saved_tensors":
        assert seen == wanted_seen


def test_a_setting_that_stays_is_captured():
    for mode in ("default_device", "deterministic", "flush_denormal", "default_dtype", "saved_tensors"):
        with MODES[mode]([]):
            module = toy.model()
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
            step = duet.graph_step(module, toy.loss, optimizer)
            data = toy.batches(8)
            for batch in data:
                step({k: v.to(torch.get_default_dtype()) if v.is_floating_point() else v for k, v in batch.items()})
            assert step.report()[-1]["replays"] >= 4, mode
