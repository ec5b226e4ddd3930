#!/usr/bin/env python3
"""Trains every model of zoo.py with PyTorch's own loop, with duet.graph_step and, on demand, with torch.compile.

usage: models.py [--only TEXT] [--variant NAMES] [--steps N] [--time SECONDS] [--compile] [--threads N]

A line per model and variant of its training (plain, with clipped gradients, with images and weights in channels-last
layout, with a learning rate that changes at each step): captured or the reason why not; whether every loss and every
tensor of the state_dicts of model and optimizer has the bits of the loop; with --time how many times as fast as the
loop a step is (past the first 1 024 replays, which are all checked). Needs transformers, torchvision, timm and
diffusers for the models that are of these.
"""

import argparse
import copy
import itertools
import math
import random
import sys
import time
import warnings

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

import duet
import zoo

VARIANTS = ("plain", "clip", "channels_last", "schedule")
MAX_NORM = 0.5


def loop_of(model, loss, variant):
    """PyTorch's own loop: its step and its optimizer."""
    optimizer, schedule = optimizer_of(model, variant)

    def step(batch):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        if "clip" in variant:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule()
        return value.detach()

    return step, optimizer


def graph_of(model, loss, variant):
    """graph_step: as loop_of, and its report."""
    optimizer, schedule = optimizer_of(model, variant)
    graph = duet.graph_step(model, loss, optimizer, clip_grad=MAX_NORM if "clip" in variant else None)

    def step(batch):
        value = graph(batch)
        schedule()
        return value

    return step, optimizer, graph.report


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


def warm_up_and_cosine(step):
    return min(1.0, (step + 1) / 8) * (0.5 + 0.5 * math.cos(math.pi * step / 64))


def optimizer_of(model, variant):
    """The optimizer, and what is called after each step."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3, fused=True)
    if "schedule" not in variant:
        return optimizer, lambda: None
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_and_cosine).step


def is_image(part):
    return isinstance(part, torch.Tensor) and part.dim() == 4


def prepared(name, count, variant):
    """The model, its loss and batches; None where no input has a channels-last layout."""
    torch.manual_seed(0)
    model, loss, make_batch = zoo.MODELS[name]()
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(generator) for _ in range(count)]
    if "channels_last" in variant:
        if not any(map(is_image, tree_leaves(batches))):
            return None
        model = model.to(memory_format=torch.channels_last)
        batches = tree_map(lambda part: part.to(memory_format=torch.channels_last) if is_image(part) else part, batches)
    return model.train(), loss, batches


def seed():
    torch.manual_seed(2)
    numpy.random.seed(2)  # SpecAugment draws its masks with these
    random.seed(2)


def compare(name, steps, variant):
    """(report of the signature, whether all bits are the loop's), or None for a model without the variant"""
    made = prepared(name, 8, variant)
    if made is None:
        return None
    model, loss, batches = made
    twin = copy.deepcopy(model)
    step, optimizer, report = graph_of(model, loss, variant)
    loop, loop_optimizer = loop_of(twin, loss, variant)
    seed()
    ours = [step(batches[i % 8]) for i in range(steps)]
    seed()
    theirs = [loop(batches[i % 8]) for i in range(steps)]
    alike = same(ours, theirs) and same(model.state_dict(), twin.state_dict())
    alike = alike and same(optimizer.state_dict(), loop_optimizer.state_dict())
    # A first step in which parameters have no state yet may have a signature of its own.
    return max(report(), key=lambda report: report["replays"] + report["eager_steps"]), alike


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


def measure(name, seconds, variant, with_compile):
    """Times of the loop, of graph_step and of torch.compile, taken in turns."""
    model, loss, batches = prepared(name, 8, variant)
    runs = {"loop": loop_of(copy.deepcopy(model), loss, variant)[0]}
    if with_compile:
        runs["compile"] = loop_of(copy.deepcopy(model), torch.compile(loss), variant)[0]
    step, _, report = graph_of(model, loss, variant)
    for i in range(1100):
        step(batches[i % 8])
        if i == 3 and not any(report["state"] == "captured" for report in report()):
            break
    runs["graph"] = step
    best = {kind: float("inf") for kind in runs}
    own = {kind: copy.deepcopy(batches) for kind in runs}  # torch.compile gives the tensors attributes
    for _ in range(3):
        for kind, run in runs.items():
            best[kind] = min(best[kind], seconds_per_step(run, own[kind], seconds / 3))
    return best


def variants(text):
    found = [tuple(one.split("+")) for one in (",".join(VARIANTS) if text == "all" else text).split(",")]
    unknown = {part for variant in found for part in variant} - set(VARIANTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"found {', '.join(sorted(unknown))}, expected {', '.join(VARIANTS)} or all")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name holds this")
    choices = f"of {', '.join(VARIANTS)}: one, some (a,b), some at once (a+b), or all"
    parser.add_argument("--variant", type=variants, default="plain", help=choices)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--time", type=float, default=0, help="seconds per model and contestant; 0: no times")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    duet.set_log_level("error")
    captured = compared = wrong = 0
    times = " times as fast as PyTorch's loop |" if arguments.time else ""
    print("| model | variant | graph mode | same bits |" + times)
    print("|---|---|---|---|" + ("--:|" if arguments.time else ""))
    names = [name for name in zoo.MODELS if arguments.only.lower() in name.lower()]
    for name, variant in itertools.product(names, arguments.variant):
        try:
            result = compare(name, arguments.steps, variant)
        except Exception as error:  # noqa: BLE001  a model that this machine's libraries cannot make
            what = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
            print(f"| {name} | {'+'.join(variant)} | {what} | |", flush=True)
            continue
        if result is None:
            continue
        report, alike = result
        compared += 1
        captured += report["state"] == "captured"
        wrong += not alike
        state = "captured" if report["state"] == "captured" else "eager: " + report["reason"][:200]
        line = f"| {name} | {'+'.join(variant)} | {state} | {'yes' if alike else 'NO'} |"
        if arguments.time:
            best = measure(name, arguments.time, variant, arguments.compile)
            ratios = [f"{best['loop'] / best['graph']:.2f}"]
            if "compile" in best:
                ratios.append(f"torch.compile {best['loop'] / best['compile']:.2f}")
            line += " " + ", ".join(ratios) + " |"
        print(line, flush=True)
    print(f"\n{captured} of {compared} captured, {compared - wrong} with the bits of the loop")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
