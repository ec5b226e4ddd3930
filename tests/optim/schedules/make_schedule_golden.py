"""Writes schedule_golden.inc: what PyTorch and mmengine make of schedule_golden_test.cpp's cases over 2 000 steps.

Each case holds the sums of 20 successive values, so that every step counts and the file stays readable.
ReduceOnPlateau has metrics and the rate after each instead. Run with a Python that has both:

    .venv-peers/bin/python tests/optim/schedules/make_schedule_golden.py
"""

import math
import pathlib
import warnings

import mmengine
import torch
from mmengine.optim import scheduler as mm
from torch.optim import lr_scheduler as s

STEPS = 2000
EPOCH = 50  # steps
BLOCK = 20


def sgd(lr=0.1, momentum=0.9):
    return torch.optim.SGD([torch.zeros(1)], lr=lr, momentum=momentum)


def adam(lr=0.1, beta1=0.9):
    return torch.optim.Adam([torch.zeros(1)], lr=lr, betas=(beta1, 0.999))


def value_of(optimizer, name):
    group = optimizer.param_groups[0]
    return group["betas"][0] if name == "beta1" else group[name]


def by_torch(optimizer, schedules, name="lr"):
    """schedules: (begin, end, make): made when step `begin` comes, stepped until `end`. Each computes the next value
    from the current one, so they chain."""
    live = [None] * len(schedules)
    values = []
    optimizer.step()
    for step in range(STEPS):
        for i, (begin, end, make) in enumerate(schedules):
            if step == begin:
                live[i] = make(optimizer)
            elif begin < step < end:
                live[i].step()
        values.append(value_of(optimizer, name))
    return values


def by_mmengine(optimizer, *makes, name="lr"):
    """Stepped as mmengine's ParamSchedulerHook steps them."""
    schedulers = [make(optimizer) for make in makes]
    values = []
    for step in range(STEPS):
        values.append(value_of(optimizer, name))
        optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or (step + 1) % EPOCH == 0:
                scheduler.step()
    return values


def m(kind, **options):
    return lambda optimizer: getattr(mm, kind)(optimizer, **{"by_epoch": False, **options})


def converted(kind, **options):
    return lambda optimizer: getattr(mm, kind).build_iter_from_epoch(optimizer, epoch_length=EPOCH, **options)


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


def sequential(opt):
    parts = [s.LinearLR(opt, 0.01, 1.0, total_iters=99), s.CosineAnnealingLR(opt, 1900)]
    return s.SequentialLR(opt, parts, milestones=[100])


def torch_cases():
    return {
        "linear": by_torch(sgd(), [linear(0, 500, 0.001, 1.0)]),
        "constant": by_torch(sgd(), [(50, 700, lambda opt: s.ConstantLR(opt, 1 / 3, total_iters=649))]),
        "step": by_torch(sgd(0.3), [step(0, STEPS, 300, 0.1)]),
        "multi_step": by_torch(sgd(0.3), [multi_step(100, 1800, [300, 900, 1750], 0.5)]),
        "exponential": by_torch(sgd(), whole(lambda opt: s.ExponentialLR(opt, 0.998))),
        "exponential_per_epoch": by_torch(sgd(), whole(lambda opt: s.LambdaLR(opt, lambda u: 0.9 ** (u / EPOCH)))),
        "cosine": by_torch(sgd(), [cosine(0, STEPS, 0.001)]),
        "cosine_swings": by_torch(sgd(), whole(lambda opt: s.CosineAnnealingLR(opt, 300, 0.01))),
        "polynomial": by_torch(sgd(), whole(lambda opt: s.PolynomialLR(opt, STEPS - 1, 0.9))),
        "warm_restarts": by_torch(sgd(), whole(lambda opt: s.CosineAnnealingWarmRestarts(opt, 500, eta_min=0.002))),
        "warm_restarts_doubled": by_torch(sgd(), whole(lambda opt: s.CosineAnnealingWarmRestarts(opt, 250, 2))),
        "one_cycle": by_torch(sgd(), one_cycle(STEPS)),
        "one_cycle_momentum": by_torch(sgd(), one_cycle(STEPS), "momentum"),
        "one_cycle_beta1": by_torch(adam(), one_cycle(1000, base_momentum=0.8), "beta1"),
        "three_phases": by_torch(sgd(), one_cycle(1500, three_phase=True, anneal_strategy="linear", pct_start=0.25)),
        "three_phases_momentum": by_torch(
            sgd(), one_cycle(1500, three_phase=True, anneal_strategy="linear", pct_start=0.25), "momentum"),
        "wsd_linear": by_torch(sgd(), wsd(100, 200, STEPS, "linear", 0.0)),
        "wsd_sqrt": by_torch(sgd(), wsd(0, 1000, 1500, "sqrt", 0.1)),
        "wsd_cosine": by_torch(sgd(), wsd(200, 1800, STEPS, "cosine", 0.01)),
        "sequential": by_torch(sgd(), whole(sequential)),
        "half_linear_cosine": by_torch(sgd(0.001), [linear(0, 100, 0.01, 0.5), cosine(100, 1500, 1e-5)]),
        "linear_multi_step": by_torch(
            sgd(0.02), [linear(0, 500, 0.001, 1.0), multi_step(0, STEPS, [1200, 1700], 0.1)]),
        "cosine_step": by_torch(sgd(), [cosine(0, 900, 0.01), step(1000, STEPS, 400, 0.1)]),
    }


def mmengine_cases():
    warm_up = m("LinearLR", start_factor=0.01, end_factor=0.5, end=100)
    return {
        "mm_polynomial": by_mmengine(sgd(), m("PolyLR", eta_min=1e-4, power=0.9, begin=40, end=1900)),
        "mm_cosine_t_max": by_mmengine(
            sgd(), warm_up, m("CosineAnnealingLR", T_max=300, eta_min=0.01, begin=100, end=1800)),
        "mm_cosine_ratio": by_mmengine(
            sgd(), warm_up, m("CosineAnnealingLR", eta_min_ratio=0.05, begin=100, end=STEPS)),
        "mm_restarts": by_mmengine(
            sgd(), warm_up, m("CosineRestartLR", periods=[300, 700, 400], restart_weights=[1, 0.5, 0.25],
                              eta_min_ratio=0.1, begin=100)),
        "mm_products": by_mmengine(
            sgd(), m("LinearLR", start_factor=0.2, end=600), m("ExponentialLR", gamma=0.999, begin=200, end=1000),
            m("StepLR", step_size=250, gamma=0.5, begin=50, end=1200),
            m("ConstantLR", factor=0.3, begin=500, end=900)),
        "mm_epochs": by_mmengine(
            sgd(), m("LinearLR", start_factor=0.1, end=5, by_epoch=True),
            m("CosineAnnealingLR", eta_min=1e-3, begin=5, end=38, by_epoch=True)),
        "mm_epochs_and_steps": by_mmengine(
            sgd(), m("LinearLR", start_factor=0.001, end=130),
            m("MultiStepLR", milestones=[12, 30], gamma=0.1, by_epoch=True),
            m("ExponentialLR", gamma=0.97, by_epoch=True)),
        "mm_epochs_restarts": by_mmengine(
            sgd(), m("CosineRestartLR", periods=[10, 20], restart_weights=[1, 0.5], eta_min=0, begin=2, by_epoch=True)),
        "mm_epochs_one_cycle": by_mmengine(sgd(), m("OneCycleLR", eta_max=0.4, total_steps=40, by_epoch=True)),
        "mm_converted": by_mmengine(
            sgd(), converted("LinearLR", start_factor=0.1, end=3),
            converted("CosineAnnealingLR", T_max=30, begin=3, end=40)),
        "mm_converted_steps": by_mmengine(
            sgd(), converted("StepLR", step_size=7, gamma=0.6), converted("MultiStepLR", milestones=[3, 20], begin=2),
            converted("ConstantLR", factor=0.5, begin=1, end=9)),
        "mm_converted_polynomial": by_mmengine(sgd(), converted("PolyLR", power=2.0, begin=2, end=40)),
        "mm_converted_restarts": by_mmengine(
            sgd(), converted("CosineRestartLR", periods=[10, 30], restart_weights=[1, 0.3], eta_min=0.01)),
        "mm_converted_one_cycle": by_mmengine(
            sgd(), converted("OneCycleLR", eta_max=0.4, total_steps=40, three_phase=True)),
        "mm_momentum": by_mmengine(
            sgd(), m("LinearMomentum", start_factor=0.5, end=200),
            m("CosineAnnealingMomentum", eta_min=0.6, begin=200, end=1700), name="momentum"),
        "mm_momentum_products": by_mmengine(
            sgd(), m("ConstantMomentum", factor=0.9, end=400), m("StepMomentum", step_size=300, gamma=0.95, begin=100),
            m("ExponentialMomentum", gamma=0.9995, begin=600), name="momentum"),
        "mm_beta1": by_mmengine(
            adam(), m("MultiStepMomentum", milestones=[500, 900], gamma=0.8, end=1000),
            m("PolyMomentum", eta_min=0.2, begin=1000, end=STEPS), name="beta1"),
        "mm_beta1_restarts": by_mmengine(
            adam(), m("CosineRestartMomentum", periods=[800, 1200], restart_weights=[1, 0.9], eta_min=0.5),
            name="beta1"),
    }


def metrics():
    """Falls, stays, rises and swings, with a NaN."""
    values = [round(2 / (1 + 0.1 * k) + 0.2 * math.sin(0.9 * k), 3) for k in range(40)]
    return values + [values[-1]] * 20 + [math.nan] + [round(0.5 + 0.01 * k, 3) for k in range(39)]


def plateau_by_torch(sign, **options):
    optimizer = sgd()
    scheduler = s.ReduceLROnPlateau(optimizer, **options)
    rates = []
    for metric in metrics():
        scheduler.step(sign * metric)
        rates.append(value_of(optimizer, "lr"))
    return rates


def plateau_by_mmengine():
    """A validation after each of 100 epochs of EPOCH steps, beside a schedule by steps."""
    optimizer = sgd()
    warm_up = mm.LinearLR(optimizer, start_factor=0.1, end=1200, by_epoch=False)
    plateau = mm.ReduceOnPlateauLR(optimizer, monitor="loss", factor=0.5, patience=2, cooldown=1, begin=10, end=80)
    rates = []
    for metric in metrics():
        for _ in range(EPOCH):
            optimizer.step()
            warm_up.step()
        plateau.step()
        plateau.step({"loss": metric})
        rates.append(value_of(optimizer, "lr"))
    return rates


def plateau_cases():
    return {
        "less_rel": plateau_by_torch(1, patience=3, factor=0.5),
        "greater_abs": plateau_by_torch(-1, mode="max", threshold_mode="abs", threshold=0.05, patience=1, cooldown=3),
        "min_value": plateau_by_torch(1, patience=0, factor=0.3, min_lr=0.001),
        "eps": plateau_by_torch(1, patience=2, factor=0.9, eps=0.005),
        "mm_beside_linear": plateau_by_mmengine(),
    }


def array(values):
    rows = [", ".join(repr(float(v)) for v in values[i:i + 4]) for i in range(0, len(values), 4)]
    return "{" + ",\n   ".join(rows).replace("nan", "NAN") + "}"


def main():
    warnings.simplefilter("ignore")  # the order of optimizer.step() and scheduler.step() does not matter here
    lines = ["// Written by make_schedule_golden.py with torch %s and, where names begin with mm_, mmengine %s."
             % (torch.__version__, mmengine.__version__), "const Golden kGolden[] = {"]
    for name, values in {**torch_cases(), **mmengine_cases()}.items():
        assert len(values) == STEPS, name
        sums = [math.fsum(values[i:i + BLOCK]) for i in range(0, STEPS, BLOCK)]
        lines.append('  {"%s",\n   %s},' % (name, array(sums)))
    lines += ["};", "", "const std::vector<double> kMetrics =\n   %s;" % array(metrics()), "",
              "const Golden kPlateaus[] = {"]
    lines += ['  {"%s",\n   %s},' % (name, array(rates)) for name, rates in plateau_cases().items()]
    lines.append("};")
    target = pathlib.Path(__file__).with_name("schedule_golden.inc")
    target.write_text("\n".join(lines) + "\n")
    print(target, len(lines), "entries")


if __name__ == "__main__":
    main()
