"""Writes optimizer_golden.inc: what torch.optim's fused optimizers make of three parameters in 50 updates.

Parameters and gradients are closed formulas of float32 numbers without rounding, so that optimizer_test.cpp can make the
same ones. Run with the torch of .venv:

    .venv/bin/python tests/optim/make_optimizer_golden.py
"""

import pathlib
import re

import torch

SIZES = [(3, 5), (17,), ()]
UPDATES = 50
CHECKED = [1, 2, 11, 50]

# As in optimizer_test.cpp. One optimizer per parameter: torch's fused SGD cannot mix first and later steps.
CASES = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True)),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, dampening=0.3)),
    "sgd_weight_decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    "sgd_everything": (torch.optim.SGD, dict(lr=0.03, momentum=0.7, weight_decay=0.05, nesterov=True, maximize=True)),
    "adam": (torch.optim.Adam, dict(lr=0.01)),
    "adam_amsgrad": (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adam_weight_decay": (torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    "adam_maximize": (torch.optim.Adam, dict(lr=0.01, maximize=True)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw_no_decay": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0)),
    "adamw_everything": (
        torch.optim.AdamW,
        dict(lr=0.02, betas=(0.7, 0.9), eps=1e-4, weight_decay=0.2, amsgrad=True, maximize=True),
    ),
}


def initial(parameter, shape):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return (((i * 7 + 3 * parameter) % 11 - 5) / 8).reshape(shape)


def gradient(parameter, shape, update):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return (((i * 5 + update * 3 + parameter) % 13 - 6) / 16).reshape(shape)


def has_gradient(parameter, update, skips):
    """With `skips` parameter 1 sits out every third update and parameter 2 the first four."""
    return not skips or not (parameter == 1 and update % 3 == 1 or parameter == 2 and update < 4)


def trajectory(make, options, skips):
    parameters = [torch.nn.Parameter(initial(p, shape)) for p, shape in enumerate(SIZES)]
    optimizers = [make([parameter], fused=True, **options) for parameter in parameters]
    for update in range(UPDATES):
        for p, (parameter, optimizer) in enumerate(zip(parameters, optimizers)):
            optimizer.param_groups[0]["lr"] = options["lr"] / (1 + update // 10)
            if has_gradient(p, update, skips):
                parameter.grad = gradient(p, SIZES[p], update)
                optimizer.step()
        if update + 1 in CHECKED:
            yield update + 1, torch.cat([parameter.detach().flatten() for parameter in parameters])


def short_hex(value):
    return re.sub(r"\.?0*p", "p", float(value).hex()) + "F"


def main():
    path = pathlib.Path(__file__).with_name("optimizer_golden.inc")
    with path.open("w") as out:
        out.write(f"// Written by make_optimizer_golden.py with torch {torch.__version__}: {{case, update, values}}.\n")
        for name, (make, options) in CASES.items():
            for skips in (False, True):
                for update, values in trajectory(make, options, skips):
                    text = ", ".join(short_hex(value) for value in values)
                    out.write(f'{{"{name}{"_skips" if skips else ""}", {update}, {{{text}}}}},\n')


main()
