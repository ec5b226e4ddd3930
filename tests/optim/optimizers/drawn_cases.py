"""Random options and moving numbers for every optimizer, the same in each run: what nobody has thought of."""

import random

CASES_OF_EACH = 4

# From where a number is drawn.
RANGES = {
    "lr": (0.01, 0.1),
    "weight_decay": (0, 0.2),
    "beta1": (0.5, 0.95),
    "beta2": (0.8, 0.999),
    "eps": (1e-8, 1e-3),
    "momentum": (0.1, 0.95),
    "dampening": (0, 0.5),
    "alpha": (0.8, 0.99),
    "lr_decay": (0, 0.1),
    "initial_accumulator_value": (0, 0.5),
    "momentum_decay": (0, 0.1),
    "rho": (0.5, 0.99),
    "beta2_decay": (-0.9, -0.4),
    "eps2": (1e-3, 0.5),
    "d": (1, 2),
    "lambd": (0, 0.05),
    "t0": (1, 200),
}
# What a type has beside lr; whatever has no range is a flag. Not Lion, whose signs would depend on rounding, nor Rprop,
# whose numbers are all in cases of their own.
OPTIONS = {
    "SGD": "weight_decay momentum dampening nesterov maximize",
    "Adam": "weight_decay betas eps amsgrad maximize",
    "AdamW": "weight_decay betas eps amsgrad maximize",
    "Adagrad": "weight_decay eps lr_decay initial_accumulator_value maximize",
    "RMSprop": "weight_decay eps momentum alpha centered maximize",
    "NAdam": "weight_decay betas eps momentum_decay decoupled_weight_decay maximize",
    "RAdam": "weight_decay betas eps decoupled_weight_decay maximize",
    "Muon": "weight_decay betas momentum nesterov maximize",
    "Adadelta": "weight_decay eps rho maximize",
    "Adafactor": "weight_decay beta2_decay eps2 d maximize",
    "Adamax": "weight_decay betas eps maximize",
    "ASGD": "weight_decay lambd alpha t0 maximize",
    "SparseAdam": "betas eps maximize",
}
FIXED = ("lr", "initial_accumulator_value")


def drawn_case(kind, generator):
    def draw(name):
        return float(f"{generator.uniform(*RANGES[name]):.3g}")

    options = dict(lr=draw("lr"))
    drawn = [name for name in OPTIONS[kind].split() if generator.random() < 0.7]
    if "nesterov" in drawn and kind == "SGD":  # the only ones that belong together
        drawn = [*dict.fromkeys([*drawn, "momentum"])]
        drawn = [name for name in drawn if name != "dampening"]
    moves = {}
    for name in drawn:
        parts = ("beta1", "beta2") if name == "betas" else (name,)
        values = [draw(part) if part in RANGES else True for part in parts]
        options[name] = tuple(values) if name == "betas" else values[0]
        moves |= {part: (value, draw(part)) for part, value in zip(parts, values) if part in RANGES}
    moving = [name for name in moves if name not in FIXED and generator.random() < 0.7]
    return options | dict(moves={name: moves[name] for name in moving})


def drawn_cases():
    """Type: case: options."""
    generators = {kind: random.Random(kind) for kind in OPTIONS}
    return {
        kind: {f"drawn{number}": drawn_case(kind, generator) for number in range(CASES_OF_EACH)}
        for kind, generator in generators.items()
    }
