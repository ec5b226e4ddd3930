#!/usr/bin/env python3
"""Writes a checkpoint as the program of today saves it, to be kept for good beside this file.

usage: make_released.py PROGRAM FOLDER

Once per format, before the first release that writes it; a folder that is there is not changed. R17 of scripts/torture loads
what is kept.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "cli"), str(HERE.parents[1] / "torture")]

from file_bytes import safetensors  # noqa: E402
from released import tensors  # noqa: E402

CONFIG = """\
model: {type: Mlp, in_features: 4, num_classes: 3, hidden: [5], dropout: 0.1}
data: {train: {type: Safetensors, path: data.safetensors, batch_size: 4}}
trainer: {max_steps: 6, accumulate: 2}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.01}, clip_grad: {max_norm: 1.0}, loss_scale: {init_scale: 1024}}
param_scheduler: [{type: Linear, end: 3}]
default_hooks: {checkpoint: {interval: 6}}
custom_hooks: [{type: EMAHook, momentum: 0.1}]
"""


def main():
    program, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir()
    values = [((i * 37) % 101) / 101 for i in range(24 * 4)]
    (folder / "data.safetensors").write_bytes(safetensors({
        "input": ("F32", [24, 4], struct.pack("<96f", *values)),
        "target": ("I64", [24], struct.pack("<24q", *[i % 3 for i in range(24)]))}))
    (folder / "run.yaml").write_text(CONFIG)

    def duet(*words):
        subprocess.run([program, *words], cwd=folder, check=True)

    duet("train", "run.yaml", "work_dir=made", "--json", "end.json")
    end = json.loads((folder / "end.json").read_text())
    expected = {key: end[key] for key in ("weights_hash", "steps")}
    for name in ("model", "ema"):
        duet("export", "made", f"{name}.safetensors", "--weights", name)
        expected[name] = list(tensors(folder / f"{name}.safetensors"))
        (folder / f"{name}.safetensors").unlink()
    (folder / "end.json").unlink()
    (folder / "run").mkdir()
    (folder / "made" / "checkpoints").rename(folder / "run" / "checkpoints")
    for path in sorted((folder / "made").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "made").rmdir()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
