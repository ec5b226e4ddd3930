#!/usr/bin/env python3
"""Trains the example configs in both modes and expects the same bits.

usage: compare_examples.py PROGRAM EXAMPLES-FOLDER [--steps N]

Each config runs with and without accumulation, in float32 and under bf16 autocast (or as it has it), on so little data that
epochs end with a smaller batch and, with accumulation, a shorter window. Nothing may run eagerly but the first steps of each form
of window.
"""

import pathlib
import sys

from program import Program, run_checks

EXAMPLES, STEPS = pathlib.Path(sys.argv[2]).resolve(), int(sys.argv[4]) if "--steps" in sys.argv else 200
# Limits that leave 8 batches per epoch, which is no multiple of 3, with a smaller one at the end: 117 samples of the
# 31.6 thousand characters that are for training, 117 scenes.
LIMITS = {
    "fashion_mnist": ["data.train.limit=500", "data.val.limit=300", "trainer.max_epochs=1000"],
    "char_gpt": ["data.train.stride=270", "trainer.max_steps=1000"],
    "segmentation": ["data.train.length=117", "data.val.length=32"],
}
FORMS = 2  # of windows per number of micro-batches: whole, and the last of an epoch
BATCHES = 8


def compare(program, name, accumulate, amp):
    report = program.json("compare", EXAMPLES / f"{name}.yaml", "work_dir=run", f"trainer.accumulate={accumulate}", *amp, *LIMITS[name],
                          "--steps", STEPS)
    eager, graph = report["eager"], report["graph"]
    assert report["bit_identical"] and eager["weights_hash"] == graph["weights_hash"] and not graph["fallbacks"], (name, report)
    assert all(half["steps"] == len(half["losses"]) == STEPS for half in (eager, graph)), (name, report)
    assert graph["eager_steps"] + graph["replays"] == STEPS and graph["eager_steps"] <= 2 * FORMS, (name, report)
    print(f"{name} accumulate={accumulate} {amp}: {graph['replays']} replayed, {report['speedup']:.2f}x", flush=True)


def check_examples(program):
    for name in LIMITS:
        for accumulate in (1, 3):
            assert STEPS >= 3 * -(-BATCHES // accumulate), "fewer than 3 ends of an epoch; raise --steps"
            for amp in [[]] if name == "segmentation" else [["optim_wrapper.amp=off"], ["optim_wrapper.amp=bf16"]]:
                compare(program, name, accumulate, amp)


if __name__ == "__main__":
    run_checks(Program, check_examples)
