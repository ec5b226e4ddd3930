"""Settings and modes of the thread around a step, between steps and inside one."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import duet
import toy


class Counts:
    """Sees every op below autograd, as counters of FLOPs do, or every function."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def count(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class CountsOps(Counts, TorchDispatchMode):
    __torch_dispatch__ = Counts.count


class CountsCalls(Counts, TorchFunctionMode):
    __torch_function__ = Counts.count


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


# Beside those of tests/graph/traps_settings.cpp.
MODES = {
    "dispatch_mode": CountsOps,
    "function_mode": CountsCalls,
    "function_mode_that_changes": lambda seen: Doubles(),
    "saved_tensors": saved_tensors,
    "saved_on_cpu": lambda seen: torch.autograd.graph.save_on_cpu(),
    "autocast_without_cache": lambda seen: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "default_dtype": lambda seen: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default_device": lambda seen: torch.device("cpu"),
    "forward_ad": lambda seen: torch.autograd.forward_ad.dual_level(),
}


def loss(module, batch):
    logits = module(batch["x"])
    made = torch.ones(3).mean() * 1e-3  # of the default dtype
    return torch.nn.functional.cross_entropy(logits, batch["y"]) + made.to(logits.dtype)


@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_comes_and_goes_gives_the_bits_of_the_loop(mode, where):
    seen, now = [], [0]

    def within(place):
        return MODES[mode](seen) if place == where and 10 <= now[0] < 16 else contextlib.nullcontext()

    def loss_fn(module, batch):
        with within("inside"):
            return loss(module, batch)

    def run(step, module, optimizer):
        seen.clear()
        losses = []
        for n, batch in enumerate(toy.batches(24)):
            now[0] = n
            with within("around"):
                losses.append(step(batch))
        calls = [seen.count(call) for call in ("addmm.default", "cross_entropy")]  # of the loss, not of the optimizer
        return losses, calls, list(seen) if mode == "saved_tensors" else []

    toy.same_as_loop(run, loss_fn, optimizer=toy.sgd)


def test_a_setting_that_stays_is_captured():
    for mode in ("default_device", "default_dtype", "saved_tensors"):
        with MODES[mode]([]):
            module = toy.model()
            step = duet.graph_step(module, toy.loss, toy.sgd(module))
            for batch in toy.batches(8):
                step({k: v.to(torch.get_default_dtype()) if v.is_floating_point() else v for k, v in batch.items()})
            assert step.report()[-1]["replays"] >= 4, mode
