"""Writes ema_golden.inc: mmengine's three averages, as its EMAHook steps them.

    .venv-peers/bin/python tests/hooks/make_ema_golden.py

The weights of every step are fractions that float32 holds exactly, so that the test can make the same ones.
"""

import itertools
import pathlib

import mmengine
import torch
from mmengine.model import averaged_model

STEPS = 60
RECORDED = (1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 16, 30, 47, 60)
MOMENTUM, GAMMA = 0.05, 8


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.norm = torch.nn.BatchNorm1d(3, affine=False)


def fractions(step, count, factor, modulus):
    return torch.tensor([(step * factor + i * 11) % modulus / 64 - 0.75 for i in range(count)])


def set_values(model, step):
    model.weight.data.copy_(fractions(step, 4, 37, 101))
    model.norm.running_mean.copy_(fractions(step, 3, 53, 97))
    model.norm.running_var.copy_(fractions(step, 3, 29, 89) + 1)


def trajectory(kind, interval, begin, update_buffers):
    model = Model()
    set_values(model, 0)
    options = {"momentum": MOMENTUM} if kind != "StochasticWeightAverage" else {}
    if kind == "MomentumAnnealingEMA":
        options["gamma"] = GAMMA
    average = getattr(averaged_model, kind)(model, interval=interval, update_buffers=update_buffers, **options)
    rows = []
    for step in range(1, STEPS + 1):
        set_values(model, step)
        if step >= begin:  # EMAHook.after_train_iter
            average.update_parameters(model)
        else:
            for name, value in average.module.state_dict().items():
                value.copy_(model.state_dict()[name])
        if step in RECORDED:
            module = average.module
            rows.append([*module.weight.tolist(), *module.norm.running_mean.tolist(), *module.norm.running_var.tolist()])
    return rows


def main():
    kinds = ("ExponentialMovingAverage", "MomentumAnnealingEMA", "StochasticWeightAverage")
    lines = [f"// Written by make_ema_golden.py with mmengine {mmengine.__version__} and torch {torch.__version__}.",
             f"constexpr double kMomentum = {MOMENTUM};", f"constexpr int64_t kGamma = {GAMMA};",
             f"const std::vector<int64_t> kRecorded = {{{', '.join(map(str, RECORDED))}}};",
             "// After each recorded step: weight, running_mean, running_var.", "const EmaGolden kGolden[] = {"]
    for kind, interval, begin, buffers in itertools.product(kinds, (1, 3), (0, 10), (False, True)):
        lines.append(f'  {{"{kind}", {interval}, {begin}, {str(buffers).lower()}, {{')
        lines += ["    {" + ", ".join(f"{value:.9g}" for value in row) + "}," for row in trajectory(kind, interval, begin, buffers)]
        lines.append("  }},")
    lines.append("};")
    pathlib.Path(__file__).with_name("ema_golden.inc").write_text("\n".join(lines) + "\n")


main()
