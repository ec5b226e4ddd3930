#!/usr/bin/env python3
"""Measures what a step costs in other trainers, on one thread of the CPU, and prints JSON.

usage: run.py [--peer NAME] [--case NAME] [--steps N] [--repetitions N]

{"CASE": {"PEER": {"cpu_us": ..., "wall_us": ..., "steps": ...}}}: time of the whole process per step, the least
of the repetitions. Every measurement is a process of its own. A peer that fails has {"error": ...} instead.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")

WARM_UP = 20


class Clock:
    """Counts steps; holds the times of the last warm-up step and of the last one."""

    def __init__(self):
        self.steps = 0

    def __call__(self):
        self.steps += 1
        if self.steps == WARM_UP:
            self.begin = time.process_time(), time.perf_counter()
        self.end = time.process_time(), time.perf_counter()

    def result(self):
        timed = self.steps - WARM_UP
        cpu, wall = (1e6 * (end - begin) / timed for begin, end in zip(self.begin, self.end))
        return {"cpu_us": round(cpu, 1), "wall_us": round(wall, 1), "steps": timed}


def measure_here(case, peer, steps):
    import torch

    import models
    import trainers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = models.CASES[case]()
    clock = Clock()
    trainers.PEERS[peer](model.train(), trainers.Repeated(batch, WARM_UP + steps), clock)
    return clock.result()


def measure(case, peer, steps):
    command = [sys.executable, __file__, "--here", "--case", case, "--peer", peer, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def fastest(runs):
    good = [run for run in runs if "error" not in run]
    return min(good, key=lambda run: run["cpu_us"]) if good else runs[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case")
    parser.add_argument("--peer")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.case, options.peer, options.steps)))
        return

    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import models
    import trainers

    cases = [options.case] if options.case else list(models.CASES)
    peers = [options.peer] if options.peer else list(trainers.PEERS)
    found = {case: {peer: [] for peer in peers} for case in cases}
    for _ in range(options.repetitions):
        for case in cases:
            for peer in peers:
                found[case][peer].append(measure(case, peer, options.steps))
    print(json.dumps({case: {peer: fastest(runs) for peer, runs in row.items()} for case, row in found.items()}, indent=1))


if __name__ == "__main__":
    main()
