"""Writes schedule_golden.inc: learning rates of torch.optim.lr_scheduler for the cases of schedule_test.cpp.

A schedule of mmengine over [begin, end) is the PyTorch scheduler of the same name, made when update `begin` comes and
stepped until `end`; both compute the next rate from the current one, so they chain alike. Run with the torch of .venv:

    .venv/bin/python tests/optim/make_schedule_golden.py
"""

import pathlib
import warnings

import torch
from torch.optim import lr_scheduler as s

RUN_LENGTH = 2000
END = RUN_LENGTH  # of schedules that name none


def linear(begin, end, start, stop):
    return begin, end, lambda opt: s.LinearLR(opt, start, stop, total_iters=end - begin - 1)


def constant(begin, end, factor):
    return begin, end, lambda opt: s.ConstantLR(opt, factor, total_iters=end - begin - 1)


def step(begin, end, size, gamma):
    return begin, end, lambda opt: s.StepLR(opt, size, gamma)


def multi_step(begin, end, milestones, gamma):
    return begin, end, lambda opt: s.MultiStepLR(opt, milestones, gamma)


def cosine(begin, end, eta_min):
    return begin, end, lambda opt: s.CosineAnnealingLR(opt, end - begin, eta_min)


def poly(begin, end, power):  # PyTorch has no eta_min here
    return begin, end, lambda opt: s.PolynomialLR(opt, end - begin - 1, power)


# name: initial rate and schedules; a number added to every rate (the eta_min of Polynomial).
CASES = {
    "linear": (0.1, [linear(0, 500, 0.001, 1.0)], 0.0),
    "constant": (0.1, [constant(50, 700, 1 / 3)], 0.0),
    "step": (0.3, [step(0, END, 300, 0.1)], 0.0),
    "multi_step": (0.3, [multi_step(100, 1800, [300, 900, 1750], 0.5)], 0.0),
    "cosine": (0.1, [cosine(0, END, 0.001)], 0.0),
    "polynomial": (0.1, [poly(0, END, 0.9)], 0.0001),
    "linear_cosine": (0.001, [linear(0, 100, 0.01, 1.0), cosine(100, END, 0.0)], 0.0),
    "half_linear_cosine": (0.001, [linear(0, 100, 0.01, 0.5), cosine(100, 1500, 1e-5)], 0.0),
    "linear_multi_step": (0.02, [linear(0, 500, 0.001, 1.0), multi_step(0, END, [1200, 1700], 0.1)], 0.0),
    "cosine_step": (0.1, [cosine(0, 900, 0.01), step(1000, END, 400, 0.1)], 0.0),
}


def rates(initial, schedules):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=initial)
    optimizer.step()
    live = [None] * len(schedules)
    result = []
    for update in range(RUN_LENGTH):
        for i, (begin, end, make) in enumerate(schedules):
            if update == begin:
                live[i] = make(optimizer)
            elif begin < update < end:
                live[i].step()
        result.append(optimizer.param_groups[0]["lr"])
    return result


def sampled(schedules):
    """About 60 updates: evenly spread, and both sides of every border."""
    chosen = set(range(0, RUN_LENGTH, 47)) | {RUN_LENGTH - 1}
    for begin, end, _ in schedules:
        chosen |= {begin - 1, begin, begin + 1, end - 2, end - 1, end}
    return sorted(update for update in chosen if 0 <= update < RUN_LENGTH)


def main():
    warnings.simplefilter("ignore")  # the order of optimizer.step() and scheduler.step() does not matter here
    lines = ["// Written by make_schedule_golden.py with torch " + torch.__version__ + ": {case, update, rate}."]
    for name, (initial, schedules, shift) in CASES.items():
        values = [rate + shift for rate in rates(initial - shift, schedules)]
        lines += ['{"%s", %d, %.17g},' % (name, update, values[update]) for update in sampled(schedules)]
    target = pathlib.Path(__file__).with_name("schedule_golden.inc")
    target.write_text("\n".join(lines) + "\n")
    print(target, len(lines) - 1, "rates")


if __name__ == "__main__":
    main()
