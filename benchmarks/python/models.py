#!/usr/bin/env python3
"""Trains every model of zoo.py with PyTorch's own loop, with duet.graph_step and, on demand, with torch.compile.

usage: models.py [--only TEXT] [--steps N] [--time SECONDS] [--compile] [--threads N]

A line per model: captured or the reason why not; whether every loss and every tensor of the state_dicts of model and
optimizer has the bits of the loop; with --time how many times as fast as the loop a step is (past the first 1 024
replays, which are all checked). Needs transformers, torchvision, timm and diffusers for the models that are of these.
"""

import argparse
import copy
import random
import sys
import time
import warnings

import numpy
import torch

import duet
import zoo


def loop_step(model, loss, optimizer, batch):
    optimizer.zero_grad()
    value = loss(model, batch)
    value.backward()
    optimizer.step()
    return value.detach()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def optimizer_of(model):
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3, fused=True)


def prepared(name, count):
    torch.manual_seed(0)
    model, loss, make_batch = zoo.MODELS[name]()
    generator = torch.Generator().manual_seed(1)
    return model.train(), loss, [make_batch(generator) for _ in range(count)]


def seed():
    torch.manual_seed(2)
    numpy.random.seed(2)  # SpecAugment draws its masks with these
    random.seed(2)


def compare(name, steps):
    """(report of the signature, whether all bits are the loop's)"""
    model, loss, batches = prepared(name, 8)
    twin = copy.deepcopy(model)
    optimizers = optimizer_of(model), optimizer_of(twin)
    step = duet.graph_step(model, loss, optimizers[0])
    seed()
    ours = [step(batches[i % 8]) for i in range(steps)]
    seed()
    theirs = [loop_step(twin, loss, optimizers[1], batches[i % 8]) for i in range(steps)]
    alike = same(ours, theirs) and same(model.state_dict(), twin.state_dict())
    # A first step in which parameters have no state yet may have a signature of its own.
    report = max(step.report(), key=lambda report: report["replays"] + report["eager_steps"])
    return report, alike and same(optimizers[0].state_dict(), optimizers[1].state_dict())


def seconds_per_step(run, batches, seconds):
    run(batches[0])
    best = float("inf")
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for batch in batches:
            run(batch)
        best = min(best, (time.perf_counter() - start) / len(batches))
    return best


def measure(name, seconds, with_compile):
    """Times of the loop, of graph_step and of torch.compile, taken in turns."""
    model, loss, batches = prepared(name, 8)
    runs = {}
    twin = copy.deepcopy(model)
    twin_optimizer = optimizer_of(twin)
    runs["loop"] = lambda batch: loop_step(twin, loss, twin_optimizer, batch)
    if with_compile:
        compiled_model = copy.deepcopy(model)
        compiled_optimizer = optimizer_of(compiled_model)
        compiled = torch.compile(loss)

        def compiled_step(batch):
            compiled_optimizer.zero_grad()
            compiled(compiled_model, batch).backward()
            compiled_optimizer.step()

        runs["compile"] = compiled_step
    step = duet.graph_step(model, loss, optimizer_of(model))
    for i in range(1100):
        step(batches[i % 8])
        if i == 3 and not any(report["state"] == "captured" for report in step.report()):
            break
    runs["graph"] = step
    best = {kind: float("inf") for kind in runs}
    for _ in range(3):
        for kind, run in runs.items():
            best[kind] = min(best[kind], seconds_per_step(run, batches, seconds / 3))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--time", type=float, default=0, help="seconds per model and contestant; 0: no times")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    duet.set_log_level("error")
    captured = compared = wrong = 0
    print("| model | graph mode | same bits |" + (" times as fast as PyTorch's loop |" if arguments.time else ""))
    print("|---|---|---|" + ("--:|" if arguments.time else ""))
    for name in zoo.MODELS:
        if arguments.only.lower() not in name.lower():
            continue
        try:
            report, alike = compare(name, arguments.steps)
        except Exception as error:  # noqa: BLE001  a model that this machine's libraries cannot make
            print(f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[0][:160]} | |", flush=True)
            continue
        compared += 1
        captured += report["state"] == "captured"
        wrong += not alike
        state = "captured" if report["state"] == "captured" else "eager: " + report["reason"][:200]
        line = f"| {name} | {state} | {'yes' if alike else 'NO'} |"
        if arguments.time:
            best = measure(name, arguments.time, arguments.compile)
            ratios = [f"{best['loop'] / best['graph']:.2f}"]
            if "compile" in best:
                ratios.append(f"torch.compile {best['loop'] / best['compile']:.2f}")
            line += " " + ", ".join(ratios) + " |"
        print(line, flush=True)
    print(f"\n{captured} of {compared} captured, {compared - wrong} with the bits of the loop")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
