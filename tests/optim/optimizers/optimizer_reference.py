"""What torch.optim makes of four parameters in 160 steps, for every optimizer and its flags; make_references.py writes it
down.

Parameters and gradients are closed formulas of float32 numbers without rounding, so that the C++ tests can make the same ones;
they read the options of each case, so that it is described here alone. Where duet calls ATen's fused kernels, torch.optim is run with fused=True, and once more with its single-tensor code for the steps that duet takes over tensors on some
devices; otherwise with the single-tensor code. torch has no Lion: it is written here in NumPy from
Algorithm 2 of its paper.
"""

import numpy as np
import torch

SHAPES = [(4, 6), (17,), (), (5, 3)]  # the last one with transposed memory
STEPS = 160
CHECKED = [1, 7, 60, 160]
RETUNED_AT = 80

# type, case: options; "then": numbers that change in mid-run; "moves": numbers on a line from the first step to beyond the last.
CASES = {
    "SGD": {
        "momentum": dict(lr=0.1, momentum=0.9),
        "nesterov": dict(lr=0.03, weight_decay=0.05, momentum=0.7, nesterov=True, maximize=True),
        "retuned": dict(lr=0.05, momentum=0.9, then=dict(momentum=0.5, weight_decay=0.02)),
        "rested": dict(lr=0.05, momentum=0.9, dampening=0.1, then=dict(momentum=0.0)),
        "scheduled": dict(
            lr=0.05, momentum=0.5, moves=dict(momentum=(0.5, 0.95), dampening=(0.1, 0.4), weight_decay=(0.1, 0.0))
        ),
    },
    "Adam": {
        "amsgrad": dict(lr=0.01, amsgrad=True),
        "retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, weight_decay=0.03, eps=1e-5)),
    },
    "AdamW": {
        "no_decay": dict(lr=0.01, weight_decay=0.0),
        "retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, weight_decay=0.3, eps=1e-5)),
    },
    "Adagrad": {
        "retuned": dict(lr=0.1, then=dict(weight_decay=0.05, lr_decay=0.1)),
    },
    "RMSprop": {
        "centered": dict(
            lr=0.004, weight_decay=0.05, eps=1e-4, momentum=0.6, maximize=True, alpha=0.95, centered=True
        ),
        "retuned": dict(lr=0.01, momentum=0.5, then=dict(alpha=0.9, momentum=0.8, weight_decay=0.1, eps=1e-4)),
    },
    "NAdam": {
        "decoupled": dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
        "retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, weight_decay=0.1, eps=1e-5, momentum_decay=0.1)),
    },
    "RAdam": {
        "never_rectified": dict(lr=0.01, betas=(0.9, 0.5)),
        "decoupled": dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
        "retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, weight_decay=0.1, eps=1e-5)),
    },
    "Lion": {
        "betas": dict(lr=0.01, betas=(0.95, 0.98)),
        "everything": dict(lr=0.02, weight_decay=0.2, betas=(0.8, 0.9), maximize=True),
        "retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.95, weight_decay=0.1)),
    },
    "Muon": {
        "no_nesterov": dict(lr=0.02, nesterov=False),
        "match_rms_adamw": dict(lr=0.02, adjust_lr_fn="match_rms_adamw"),
        "newton_schulz": dict(lr=0.02, eps=4.0, ns_steps=3, ns_coefficients=(2.0, -1.5, 0.5)),
        "retuned": dict(lr=0.02, then=dict(momentum=0.6, weight_decay=0.3, beta1=0.7, beta2=0.99)),
    },
    "Adadelta": {"retuned": dict(lr=0.5, then=dict(rho=0.6, weight_decay=0.05, eps=1e-4))},
    "Adafactor": {
        "eps": dict(lr=0.1, eps1=0.3, eps2=0.5),
        "retuned": dict(lr=0.1, then=dict(beta2_decay=-0.4, weight_decay=0.05, eps2=0.5, d=1.5)),
    },
    "Adamax": {"retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, weight_decay=0.03, eps=1e-5))},
    "ASGD": {
        "averaged": dict(lr=0.1, t0=20.0),
        "retuned": dict(lr=0.1, then=dict(lambd=0.05, alpha=0.5, t0=90.0, weight_decay=0.05)),
    },
    "Rprop": {
        "etas": dict(lr=0.01, etas=(0.3, 1.5)),
        "step_sizes": dict(lr=0.01, step_sizes=(1e-3, 0.05)),
        "everything": dict(lr=0.02, maximize=True, etas=(0.4, 1.1), step_sizes=(1e-4, 0.1)),
    },
    "SparseAdam": {"dense_retuned": dict(lr=0.01, then=dict(beta1=0.7, beta2=0.99, eps=1e-5))},
}
for described in CASES.values():
    described |= {"plain": dict(lr=0.03), "defaults": dict()}
# All flags at once, while every number moves.
_AVERAGES = dict(beta1=(0.6, 0.95), beta2=(0.9, 0.999))
for kind, numbers, flags, moves in (
    ("Adam", dict(eps=1e-4), ("amsgrad", "maximize"), dict(_AVERAGES, weight_decay=(0.1, 0.0))),
    ("AdamW", dict(eps=1e-4), ("amsgrad", "maximize"), dict(_AVERAGES, weight_decay=(0.0, 0.4))),
    ("Adagrad", dict(eps=1e-4, initial_accumulator_value=0.2), ("maximize",), dict(weight_decay=(0.1, 0.0), lr_decay=(0.0, 0.1))),
    ("RMSprop", dict(eps=1e-4, momentum=0.6), ("centered", "maximize"), dict(alpha=(0.8, 0.99), weight_decay=(0.1, 0.0))),
    ("NAdam", dict(eps=1e-4), ("maximize",), dict(_AVERAGES, weight_decay=(0.1, 0.0), momentum_decay=(0.0, 0.1))),
    ("RAdam", dict(eps=1e-4), ("maximize",), dict(_AVERAGES, weight_decay=(0.1, 0.0))),
    ("Muon", {}, ("nesterov", "maximize"), dict(_AVERAGES, weight_decay=(0.1, 0.0), momentum=(0.5, 0.95))),
    ("Adadelta", dict(eps=1e-4), ("maximize",), dict(rho=(0.5, 0.95), weight_decay=(0.1, 0.0))),
    ("Adafactor", {}, ("maximize",), dict(beta2_decay=(-0.9, -0.4), weight_decay=(0.1, 0.0), eps2=(1e-3, 0.5), d=(1.0, 2.0))),
    ("Adamax", dict(eps=1e-4), ("maximize",), dict(_AVERAGES, weight_decay=(0.1, 0.0))),
    ("ASGD", {}, ("maximize",), dict(lambd=(0.0, 0.05), alpha=(0.5, 0.99), t0=(1.0, 200.0), weight_decay=(0.1, 0.0))),
    ("SparseAdam", dict(eps=1e-4), ("maximize",), _AVERAGES),
):
    CASES[kind]["everything"] = dict(lr=0.02, **numbers, **dict.fromkeys(flags, True), moves=moves)

FUSED = ["SGD", "Adam", "AdamW", "Adagrad"]
# Of these every bit must agree.
EXACT = [*FUSED, "Adadelta", "Adafactor", "Adamax", "ASGD", "Rprop", "SparseAdam"]


def formula(shape, factor, shift, modulus, divisor):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return (((i * factor + shift) % modulus - modulus // 2) / divisor).reshape(shape)


def laid_out(parameter, value):
    return value.t().contiguous().t() if parameter == 3 else value


def initial(parameter):
    return laid_out(parameter, formula(SHAPES[parameter], 7, 3 * parameter, 11, 8))


def gradient(parameter, step):
    """Different for every element and step; a hundred steps later half as large."""
    shift = step * 61 + step * step * 7 + parameter * 29
    return laid_out(parameter, formula(SHAPES[parameter], 97, shift, 251, 128 << (step // 100)))


def has_gradient(parameter, step):
    """Parameter 1 sits out every third step, parameter 2 the first four."""
    return not (parameter == 1 and step % 3 == 1 or parameter == 2 and step < 4)


class Lion:
    """Algorithm 2, in NumPy."""

    def __init__(self, parameter, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        self.parameter, self.maximize = parameter, maximize
        self.value = parameter.detach().numpy().copy()
        self.average = np.zeros_like(self.value)
        self.param_groups = [dict(lr=lr, betas=betas, weight_decay=weight_decay)]

    def step(self):
        group = self.param_groups[0]
        gradient = self.parameter.grad.numpy() * np.float32(-1 if self.maximize else 1)
        beta1, beta2 = map(np.float32, group["betas"])
        direction = self.average * beta1 + gradient * np.float32(1 - group["betas"][0])
        assert np.abs(direction).min() > 3e-7, "a sign may depend on rounding"
        self.value = self.value * np.float32(1 - group["lr"] * group["weight_decay"])
        self.value = self.value - np.float32(group["lr"]) * np.sign(direction)
        self.average = self.average * beta2 + gradient * np.float32(1 - group["betas"][1])
        self.parameter.data.copy_(torch.from_numpy(np.asarray(self.value)))


def make_optimizer(kind, parameter, options, fused):
    if kind == "Lion":
        return Lion(parameter, **options)
    if kind == "SparseAdam":  # which torch refuses dense gradients
        return torch.optim.Adam([parameter], foreach=False, **options)
    if kind == "Adafactor":
        eps = (options.get("eps1"), options.get("eps2", 1e-3))
        options = {name: value for name, value in options.items() if name not in ("eps1", "eps2")}
        return torch.optim.Adafactor([parameter], foreach=False, eps=eps, **options)
    if kind != "Muon":
        return getattr(torch.optim, kind)([parameter], foreach=False, **(dict(fused=True) if fused else {}), **options)
    if parameter.ndim == 2:
        options = {name: value for name, value in options.items() if name not in ("betas", "maximize")}
        return torch.optim.Muon([parameter], **options)
    shared = {name: value for name, value in options.items() if name in ("lr", "betas", "weight_decay", "maximize")}
    shared.setdefault("weight_decay", 0.1)
    return torch.optim.AdamW([parameter], foreach=False, **shared)


def retune(optimizer, then):
    group = optimizer.param_groups[0]
    for name, value in then.items():
        if name in ("beta1", "beta2"):
            if "betas" in group:
                betas = list(group["betas"])
                betas[int(name[4]) - 1] = value
                group["betas"] = tuple(betas)
        elif name == "eps2":
            group["eps"] = (group["eps"][0], value)
        elif name in group:
            group[name] = value


def trajectory(kind, options, fused):
    options = dict(options)
    then = options.pop("then", {})
    moves = options.pop("moves", {})
    parameters = [torch.nn.Parameter(initial(p)) for p in range(len(SHAPES))]
    # One optimizer per parameter: torch's fused SGD cannot mix first and later steps, and Muon takes matrices only.
    optimizers = [make_optimizer(kind, parameter, options, fused) for parameter in parameters]
    first_lr = optimizers[0].param_groups[0]["lr"]
    flip = kind == "Muon" and options.get("maximize", False)  # which torch's Muon does not have
    for step in range(STEPS):
        for p, (parameter, optimizer) in enumerate(zip(parameters, optimizers)):
            if step == RETUNED_AT:
                retune(optimizer, then)
            retune(optimizer, {name: first + (end - first) * (step / STEPS) for name, (first, end) in moves.items()})
            optimizer.param_groups[0]["lr"] = first_lr / (1 + step // 100)
            parameter.grad = None
            if has_gradient(p, step):
                parameter.grad = gradient(p, step) * (-1 if flip and parameter.ndim == 2 else 1)
                optimizer.step()
        if step + 1 in CHECKED:
            yield step + 1, torch.cat([parameter.detach().flatten() for parameter in parameters])


def references():
    """CASE.STEPS: the weights of all parameters after so many steps; of FUSED also CASE.over_tensors.STEPS."""
    for kind, cases in CASES.items():
        for name, options in cases.items():
            for steps, weights in trajectory(kind, options, kind in FUSED):
                yield f"{kind}_{name}.{steps}", weights.clone()
            for steps, weights in trajectory(kind, options, False) if kind in FUSED else ():
                yield f"{kind}_{name}.over_tensors.{steps}", weights.clone()


def cases():
    """Name, type, options, hyper-parameters from the middle on, whether every bit must agree, moves."""
    for kind, described in CASES.items():
        for name, options in described.items():
            plain = {key: value for key, value in options.items() if key not in ("then", "moves")}
            yield {"name": f"{kind}_{name}", "type": kind, "options": plain, "then": options.get("then", {}),
                   "exact": kind in EXACT, "moves": options.get("moves", {})}
