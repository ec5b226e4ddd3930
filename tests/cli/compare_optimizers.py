#!/usr/bin/env python3
"""Trains a small model in both modes with every optimizer and expects the same bits.

usage: compare_optimizers.py PROGRAM EXAMPLES-FOLDER [--steps N] [--every N]

Optimizers x accumulation 1 and 4 x clipping off, by norm and by value x float32, bfloat16 and float16, with a learning
rate, and momentum where there is one, that move. --every N takes one in N of these.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

OPTIMIZERS = [
    "{type: SGD, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.01}", "{type: Adam, amsgrad: true}",
    "{type: AdamW, lr: 0.003}", "{type: Adagrad, lr_decay: 0.001}", "{type: RMSprop, lr: 0.001, momentum: 0.9, centered: true}",
    "{type: NAdam, decoupled_weight_decay: true, weight_decay: 0.01}", "{type: RAdam}", "{type: Lion, weight_decay: 0.1}",
    "{type: Muon, lr: 0.01}", "{type: Adadelta, weight_decay: 0.01}", "{type: Adafactor, weight_decay: 0.01}",
    "{type: Adamax, weight_decay: 0.01}", "{type: ASGD, lambd: 0.01, t0: 10}", "{type: Rprop}", "{type: SparseAdam}"]
CLIPS = ["null", "{max_norm: 0.5}", "{type: value, clip_value: 0.01}"]
SMALL = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context=16", "data.train.context=16",
         "data.train.stride=270", "trainer.max_steps=1000",
         "param_scheduler=[{type: Linear, end: 10}, {type: Cosine, begin: 10, end: 1000}]"]


def schedules(optimizer):
    moving = SMALL[-1]
    if any(name in optimizer for name in ("Adagrad", "Adadelta", "Adafactor", "ASGD", "Rprop")):
        return moving
    return moving[:-1] + ", {type: LinearMomentum, start_factor: 0.9, end_factor: 1.0, end: 20}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("examples", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    cases = list(itertools.product(OPTIMIZERS, (1, 4), CLIPS, ("off", "bf16", "fp16")))[::options.every]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for optimizer, accumulate, clip, amp in cases:
            file = pathlib.Path(folder) / "report.json"
            file.unlink(missing_ok=True)
            command = [options.program, "compare", str(options.examples / "char_gpt.yaml"), f"work_dir={folder}/run",
                       *SMALL[:-1], schedules(optimizer), f"optim_wrapper.optimizer={optimizer}",
                       f"optim_wrapper.clip_grad={clip}", f"optim_wrapper.amp={amp}", f"trainer.accumulate={accumulate}",
                       "--steps", str(options.steps), "--json", str(file)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            report = json.loads(file.read_text(encoding="utf-8")) if done.returncode == 0 else None
            good = (report is not None and report["bit_identical"] and not report["graph"]["fallbacks"]
                    and report["graph"]["replays"] >= options.steps - 4)
            if not good:
                failed += 1
                print(f"FAILED {optimizer} clip {clip} amp {amp} accumulate {accumulate}\n{done.stdout}", flush=True)
    print(f"{len(cases) - failed} of {len(cases)} comparisons bit-identical")
    if failed:
        sys.exit(f"{failed} comparisons failed")


if __name__ == "__main__":
    main()
