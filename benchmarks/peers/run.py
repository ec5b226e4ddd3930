#!/usr/bin/env python3
"""Measures what a step costs in other trainers, on the CPU, and prints JSON.

usage: run.py --case NAME [--peer NAME]... [--seconds S] [--threads N]

{"PEER": {"cpu_us": ..., "wall_us": ..., "loss": ..., "first": ...}}: time of the whole process per step, the median of
three windows of about S seconds of PyTorch's eager steps, the loss at the end of the first and of the last of them.
Every peer is a process of its own, on as many cores as it has threads. A peer that fails has {"error": ...} instead.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time

WINDOWS = 3


class Clock:
    """Counts steps; notes the times and the loss at the end of the warm-up and of each window after it."""

    def __init__(self, warm_up, window):
        self.steps, self.next, self.window, self.marks, self.losses = 0, warm_up, window, [], []

    def __call__(self, loss=None, steps=1):
        self.steps += steps
        if self.steps < self.next:
            return
        value = None if loss is None else float(loss.sum())  # waits for it
        self.marks.append((self.steps, time.process_time(), time.perf_counter()))
        self.losses.append(value)
        self.next = self.steps + self.window

    def result(self):
        spans = [[b - a for a, b in zip(*pair)] for pair in zip(self.marks, self.marks[1:])]
        cpu, wall = (round(1e6 * statistics.median(span[i] / span[0] for span in spans), 1) for i in (1, 2))
        return {"cpu_us": cpu, "wall_us": wall, "first": self.losses[0], "loss": self.losses[-1]}


def measure_here(case, peer, seconds, threads):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # JAX has no other way to say it
    import torch

    import models
    import trainers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch = models.CASES[case]()
    run = trainers.peers_of(case)
    trial = Clock(3, 3)
    run["PyTorch eager"](copy.deepcopy(model).train(), trainers.Repeated(batch, 12), trial)
    window = max(5, int(1e6 * seconds / trial.result()["cpu_us"]))
    warm_up = max(20, window // 2)
    torch.manual_seed(1)
    clock = Clock(warm_up, window)
    spare = 50 if peer == "JAX scan" else 0  # its windows end with a call
    run[peer](model.train(), trainers.Repeated(batch, warm_up + WINDOWS * (window + spare)), clock)
    clock.marks = clock.marks[:WINDOWS + 1]
    return clock.result()


def measure(case, peer, options):
    threads = str(options.threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--here", "--case", case, "--peer", peer, "--seconds", str(options.seconds)]
    done = subprocess.run([*command, "--threads", threads], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--peer", action="append")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.case, options.peer[0], options.seconds, options.threads)))
        return
    if not options.peer:
        import trainers

        options.peer = list(trainers.peers_of(options.case))
    print(json.dumps({peer: measure(options.case, peer, options) for peer in options.peer}, indent=1))


if __name__ == "__main__":
    main()
