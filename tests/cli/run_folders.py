"""Run folders as the program writes them, without the training: what tests of `duet report`, `list` and `diff` look at."""

import datetime
import json
import math
import random

CONFIG = """# The config of this run as it was resolved; comments say where each value came from.
work_dir: "{work_dir}"  # command line
mode: {mode}  # examples/a.yaml:9
seed: {seed}  # default
model:  # examples/a.yaml:13
  type: SmallCnn  # examples/a.yaml:13
  num_classes: 10  # examples/a.yaml:13
optim_wrapper:  # examples/a.yaml:21
  optimizer: {{type: AdamW, lr: {lr}}}  # command line
param_scheduler:  # examples/a.yaml:27
  - type: Linear  # examples/a.yaml:28
    end: 100  # examples/a.yaml:28
"""


def iso(seconds):
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def train_values(step, steps, draw):
    rate = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
    return {"mode": "eager", "lr": rate, "data_time": 1e-3 + draw.random() * 1e-4, "time": 0.02 + draw.random() * 1e-3,
            "loss": 2.3 * math.exp(-3 * step / steps) + draw.gauss(0, 0.05), "grad_norm": 1 + draw.random(), "memory": 700.5,
            "eta": (steps - step) * 0.02, "samples_per_second": 3200 + draw.random(), "epoch": 1, "iter": step}


def log_lines(steps, seed=0, begin=0):
    """Lines of training from `begin` on, with an evaluation at every tenth of it; the last one ends the run."""
    draw = random.Random(seed)
    start = 1795000000 + 1000 * seed

    def line(kind, step, **values):
        return json.dumps({"kind": kind, **values, "step": step, "wall_time": iso(start + step * 0.02), "run_id": f"{seed:08d}"})

    yield line("start", begin, mode="eager", steps=steps)
    yield line("text", begin, model="conv1  Conv2d  160")
    yield line("text", begin, runtime_info=f"duet on LibTorch: EagerTrainer on cpu, seed {seed}")
    for step in range(begin + 1, steps + 1):
        yield line("train", step, **train_values(step, steps, draw))
        if step % max(1, steps // 10) == 0:
            yield line("val", step, mode="eager", epoch=1, accuracy=1 - 0.8 * math.exp(-2 * step / steps), loss=0.5)
    yield line("stop", steps, mode="eager", reason="done", seconds=steps * 0.02, epoch=1)


def write_run(folder, lines, **config):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    work_dir = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    values = {"work_dir": work_dir, "mode": "eager", "seed": 0, "lr": 0.003, **config}
    (folder / "config.yaml").write_text(CONFIG.format(**values), encoding="utf-8")
    return folder
