"""What torch.optim.lr_scheduler makes of schedule_golden_test.cpp's cases over 2 000 steps; make_references.py writes it down."""

import math
import warnings

import torch
from torch.optim import lr_scheduler as s

STEPS = 2000
EPOCH = 50  # steps


def sgd(lr=0.1, momentum=0.9):
    return torch.optim.SGD([torch.zeros(1)], lr=lr, momentum=momentum)


def value_of(optimizer, name):
    group = optimizer.param_groups[0]
    return group["betas"][0] if name == "beta1" else group[name]


def values(optimizer, schedules, name="lr"):
    """schedules: (begin, end, make): made when step `begin` comes, stepped until `end`. Each computes the next value
    from the current one, so they chain."""
    live = [None] * len(schedules)
    found = []
    optimizer.step()
    for step in range(STEPS):
        for i, (begin, end, make) in enumerate(schedules):
            if step == begin:
                live[i] = make(optimizer)
            elif begin < step < end:
                live[i].step()
        found.append(value_of(optimizer, name))
    return found


def linear(begin, end, start, stop):
    return begin, end, lambda opt: s.LinearLR(opt, start, stop, total_iters=end - begin - 1)


def cosine(begin, end, eta_min):
    return begin, end, lambda opt: s.CosineAnnealingLR(opt, end - begin, eta_min)


def step(begin, end, size, gamma):
    return begin, end, lambda opt: s.StepLR(opt, size, gamma)


def multi_step(begin, end, milestones, gamma):
    return begin, end, lambda opt: s.MultiStepLR(opt, milestones, gamma)


def whole(make):
    return [(0, STEPS, make)]


def one_cycle(total, **options):
    return [(0, total, lambda opt: s.OneCycleLR(opt, 0.4, total, **options))]


def wsd(warmup, decay, length, kind, lowest):
    """TorchTitan's formula, which is a LambdaLR there too."""
    shapes = {"linear": lambda p: 1 - p, "sqrt": lambda p: 1 - math.sqrt(p),
              "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p))}

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        if step < length - decay:
            return 1.0
        return lowest + (1 - lowest) * shapes[kind]((step + 1 - (length - decay)) / decay)

    return [(0, length, lambda opt: s.LambdaLR(opt, factor))]


def by_factor(begin, end, factor):
    """factor(s): of the value at `begin`."""
    return begin, end, lambda opt: s.LambdaLR(opt, factor)


def constant(begin, end, factor):
    return begin, end, lambda opt: s.ConstantLR(opt, factor, total_iters=end - begin - 1)


def exponential(begin, end, gamma):
    return begin, end, lambda opt: s.ExponentialLR(opt, gamma)


def products():
    """Factors that overlap one another."""
    return [linear(30, 700, 0.2, 0.9), step(100, 1600, 130, 0.9), exponential(100, 900, 0.999), constant(300, 1200, 0.7),
            linear(600, 1900, 0.5, 0.8), exponential(1000, 1010, 0.98), multi_step(0, STEPS, [1, 77, 1500], 0.8)]


def weighted_restarts(s):
    """mmengine's, which torch has not: periods of 400, 1 and 700 from 1, 0.7 and 0.3 of the first value."""
    for length, weight in ((400, 1.0), (1, 0.7), (700, 0.3)):
        if s < length:
            return weight * 0.5 * (1 + math.cos(math.pi * s / length))
        s -= length
    return weight * 0.5 * (1 + math.cos(math.pi * (length - 1) / length))


def polynomial_to_a_floor(s):
    return 0.2 + 0.8 * (1 - s / (STEPS - 1)) ** 0.9


def sequential(opt):
    parts = [s.LinearLR(opt, 0.01, 1.0, total_iters=99), s.CosineAnnealingLR(opt, 1900)]
    return s.SequentialLR(opt, parts, milestones=[100])


def curves():
    adam = torch.optim.Adam([torch.zeros(1)], lr=0.1, betas=(0.9, 0.999))
    three_phases = one_cycle(1500, three_phase=True, anneal_strategy="linear", pct_start=0.25)
    return {
        "linear": values(sgd(), [linear(0, 500, 0.001, 1.0)]),
        "constant": values(sgd(), [constant(50, 700, 1 / 3)]),
        "step": values(sgd(0.3), [step(0, STEPS, 300, 0.1)]),
        "multi_step": values(sgd(0.3), [multi_step(100, 1800, [300, 900, 1750], 0.5)]),
        "exponential": values(sgd(), [exponential(0, STEPS, 0.998)]),
        "exponential_per_epoch": values(sgd(), whole(lambda opt: s.LambdaLR(opt, lambda u: 0.9 ** (u / EPOCH)))),
        "cosine": values(sgd(), [cosine(0, STEPS, 0.001)]),
        "cosine_swings": values(sgd(), whole(lambda opt: s.CosineAnnealingLR(opt, 300, 0.01))),
        "polynomial": values(sgd(), whole(lambda opt: s.PolynomialLR(opt, STEPS - 1, 0.9))),
        "warm_restarts": values(sgd(), whole(lambda opt: s.CosineAnnealingWarmRestarts(opt, 500, eta_min=0.002))),
        "warm_restarts_doubled": values(sgd(), whole(lambda opt: s.CosineAnnealingWarmRestarts(opt, 250, 2))),
        "one_cycle": values(sgd(), one_cycle(STEPS)),
        "one_cycle_momentum": values(sgd(), one_cycle(STEPS), "momentum"),
        "one_cycle_beta1": values(adam, one_cycle(1000, base_momentum=0.8), "beta1"),
        "three_phases": values(sgd(), three_phases),
        "three_phases_momentum": values(sgd(), three_phases, "momentum"),
        "wsd_linear": values(sgd(), wsd(100, 200, STEPS, "linear", 0.0)),
        "wsd_sqrt": values(sgd(), wsd(0, 1000, 1500, "sqrt", 0.1)),
        "wsd_cosine": values(sgd(), wsd(200, 1800, STEPS, "cosine", 0.01)),
        "sequential": values(sgd(), whole(sequential)),
        "half_linear_cosine": values(sgd(0.001), [linear(0, 100, 0.01, 0.5), cosine(100, 1500, 1e-5)]),
        "linear_multi_step": values(
            sgd(0.02), [linear(0, 500, 0.001, 1.0), multi_step(0, STEPS, [1200, 1700], 0.1)]),
        "products": values(sgd(), products()),
        "weighted_restarts": values(sgd(), [by_factor(0, STEPS, weighted_restarts)]),
        "polynomial_to_a_floor": values(sgd(), [by_factor(0, STEPS, polynomial_to_a_floor)]),
        "cosine_to_a_share": values(sgd(0.2), [cosine(0, 1200, 0.02)]),
        "cosine_step": values(sgd(), [cosine(0, 900, 0.01), step(1000, STEPS, 400, 0.1)]),
    }


def metrics():
    """Falls, stays, rises and swings, with a NaN."""
    falling = [round(2 / (1 + 0.1 * k) + 0.2 * math.sin(0.9 * k), 3) for k in range(40)]
    return falling + [falling[-1]] * 20 + [math.nan] + [round(0.5 + 0.01 * k, 3) for k in range(39)]


def rates_on_plateaus(sign, **options):
    optimizer = sgd()
    scheduler = s.ReduceLROnPlateau(optimizer, **options)
    for metric in metrics():
        scheduler.step(sign * metric)
        yield value_of(optimizer, "lr")


def plateaus():
    return {
        "metrics": metrics(),
        "less_rel": rates_on_plateaus(1, patience=3, factor=0.5),
        "greater_abs": rates_on_plateaus(-1, mode="max", threshold_mode="abs", threshold=0.05, patience=1, cooldown=3),
        "min_value": rates_on_plateaus(1, patience=0, factor=0.3, min_lr=0.001),
        "eps": rates_on_plateaus(1, patience=2, factor=0.9, eps=0.005),
    }


def references():
    """CASE: the value of each step; plateau.metrics; plateau.CASE: the rate after each metric."""
    warnings.simplefilter("ignore")  # the order of optimizer.step() and scheduler.step() does not matter here
    for name, found in curves().items():
        yield name, torch.tensor(found, dtype=torch.float64)
    for name, found in plateaus().items():
        yield f"plateau.{name}", torch.tensor(list(found), dtype=torch.float64)
