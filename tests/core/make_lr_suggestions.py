#!/usr/bin/env python3
"""Writes lr_suggestions.inc: what Lightning's and fastai's own code suggests for curves that lr_finder_test.cpp makes by
the same formula.

usage: make_lr_suggestions.py FASTAI    with lightning installed; FASTAI: the file fastai/callback/schedule.py (2.8)
"""

import ast
import pathlib
import sys

from lightning.pytorch.tuner.lr_finder import _LRFinder

FASTAI = ast.parse(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))


def function(name):
    names = {}
    found = next(node for node in FASTAI.body if isinstance(node, ast.FunctionDef) and node.name == name)
    exec(compile(ast.Module([found], []), "fastai", "exec"), names)
    return names[name]


def curve(seed, points):
    """As curve_of() in lr_finder_test.cpp."""
    losses = []
    for i in range(points):
        away = (i - 0.1 * (5 + seed % 4) * points) / points
        noise = (i * (2 * seed + 1) * 7919 + seed * 104729) % 1009 / 1009
        base = 4 * away * away if seed % 2 else 1 - min(max(away, 0), 0.25)
        losses.append(1 + base + 0.02 * (seed % 5) * noise)
    return losses


def main():
    valley = function("valley")
    lines = []
    for seed in range(40):
        points = (100, 100, 60, 26)[seed % 4]
        loss, lr = curve(seed, points), [1e-8]
        while len(lr) < points:
            lr.append(lr[-1] * 1.25)
        finder = _LRFinder("exponential", 1e-8, 1, 100)
        finder.results = {"lr": lr, "loss": loss}
        steepest, lowest = lr.index(finder.suggestion()), lr.index(valley(lr[10:-5], loss[10:-5], 100)[0])
        lines.append(f"{{{seed}, {points}, {steepest}, {lowest}}},")
    target = pathlib.Path(__file__).with_name("lr_suggestions.inc")
    target.write_text("// Written by make_lr_suggestions.py.\n" + "\n".join(lines) + "\n", encoding="utf-8")


main()
