#!/usr/bin/env python3
"""Trains the example configs in both modes and expects the same bits.

usage: compare_examples.py PROGRAM EXAMPLES-FOLDER [--steps N]

Each config runs with and without accumulation, in float32 and under bf16 autocast (or as it has it), on so little data that epochs
end with a smaller batch and, with accumulation, a shorter window. Nothing may run eagerly but the first step of each
form of window.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

# Limits that leave 8 batches per epoch, which is no multiple of 3, with a smaller one at the end: 117 samples of the
# 31.6 thousand characters that are for training, 117 scenes.
EXAMPLES = {
    "fashion_mnist": ["data.train.limit=500", "data.val.limit=300", "trainer.max_epochs=1000"],
    "char_gpt": ["data.train.stride=270", "trainer.max_steps=1000"],
    "segmentation": ["data.train.length=117", "data.val.length=32"],
}
AMP = {"off": ["optim_wrapper.amp=off"], "bf16": ["optim_wrapper.amp=bf16"]}
OWN_AMP = {"segmentation": {"as it is": []}}
# MicroBatches forms per number of micro-batches: whole, and the last of an epoch.
FORMS = 2
BATCHES = 8


def check(report, steps, accumulate):
    """What is wrong with the report of duet compare; empty if nothing is."""
    problems = []
    graph = report["graph"]
    if not report["bit_identical"]:
        problems.append(f"not bit-identical: {report['first_difference']}")
    if report["eager"]["weights_hash"] != graph["weights_hash"]:
        problems.append("the hashes of the weights differ")
    if graph["fallbacks"]:
        problems.append(f"fallbacks: {graph['fallbacks']}")
    for half in (report["eager"], graph):
        if half["steps"] != steps or len(half["losses"]) != steps:
            problems.append(f"{half['mode']} made {half['steps']} steps, expected {steps}")
    if graph["eager_steps"] + graph["replays"] != steps or graph["eager_steps"] > 2 * FORMS:
        problems.append(f"{graph['eager_steps']} eager steps and {graph['replays']} replays of {steps}")
    per_epoch = -(-BATCHES // accumulate)
    if steps < 3 * per_epoch:
        problems.append(f"{steps} steps hold fewer than 3 ends of an epoch; raise --steps")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("examples", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, overrides in EXAMPLES.items():
            for accumulate in (1, 3):
                for amp, words in OWN_AMP.get(name, AMP).items():
                    file = pathlib.Path(folder) / "report.json"
                    file.unlink(missing_ok=True)
                    command = [options.program, "compare", str(options.examples / f"{name}.yaml"),
                               f"work_dir={folder}/run", f"trainer.accumulate={accumulate}", *words, *overrides,
                               "--steps", str(options.steps), "--json", str(file)]
                    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          check=False)
                    problems = [] if done.returncode == 0 else [f"exit code {done.returncode}"]
                    label = f"{name} accumulate={accumulate} amp={amp}"
                    if file.exists():
                        report = json.loads(file.read_text(encoding="utf-8"))
                        problems += check(report, options.steps, accumulate)
                        graph = report["graph"]
                        label += (f": {options.steps} steps, {graph['replays']} replayed, "
                                  f"{report['speedup']:.2f}x, weights {graph['weights_hash']}")
                    print(f"{'FAILED' if problems else 'ok'} {label}", flush=True)
                    if problems:
                        failed += 1
                        print("  " + "\n  ".join(problems) + "\n" + done.stdout)
    if failed:
        sys.exit(f"{failed} comparisons failed")


if __name__ == "__main__":
    main()
