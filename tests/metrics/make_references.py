#!/usr/bin/env python3
"""Writes what numpy, Pillow and scikit-learn make of random samples: FOLDER/{figures,pictures,classes}.safetensors.

usage: make_references.py FOLDER        figures by their definitions, written apart from duet's; pictures by Pillow; classes by
                                        scikit-learn, where this Python has it
"""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import numpy as np
import torch
from PIL import Image
from safetensors_file import write_safetensors

# samples, classes, how many different scores there may be (0: any), seed
CASES = [(30, 1, 3, 1), (400, 1, 7, 2), (1000, 1, 0, 3), (60, 3, 2, 4), (500, 5, 4, 5), (700, 10, 0, 6)]


def random_scores(samples, classes, levels, seed):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(samples, classes)) * 2
    if levels and classes == 1:
        scores = np.round(scores / 4 * levels) / levels
    elif levels:  # whole rows: shares that are equal on paper alone would be told apart by rounding
        scores = scores[random.integers(0, 10 * levels, samples)]
    targets = random.integers(0, max(classes, 2), samples)
    return scores, targets


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def auroc(scores, positive):
    """By Mann and Whitney's sum of ranks; equal scores share the mean of their ranks."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ups, downs = positive.sum(), (~positive).sum()
    return (ranks[positive].sum() - ups * (ups + 1) / 2) / (ups * downs)


def average_precision(scores, positive):
    """Precision after each group of equal scores, times the recall that the group adds."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = np.cumsum(positive[order])[ends]
    return float((np.diff(found, prepend=0) * found / (ends + 1)).sum() / positive.sum())


def over_classes(figure, scores, targets):
    if targets.ndim == 2:  # labels: scores are compared as they are
        return float(np.mean([figure(scores[:, k], targets[:, k] == 1) for k in range(scores.shape[1])]))
    if scores.shape[1] == 1:
        return figure(scores[:, 0], targets == 1)
    shares = softmax(scores)
    return float(np.mean([figure(shares[:, k], targets == k) for k in range(scores.shape[1]) if (targets == k).any()]))


def calibration_error(logits, targets, bins):
    """Guo et al. 2017, equation 3: bins ((m - 1) / M, m / M]."""
    shares = softmax(np.hstack([np.zeros_like(logits), logits]) if logits.shape[1] == 1 else logits)
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == targets
    error = 0.0
    for m in range(1, bins + 1):
        inside = (confidence > (m - 1) / bins) & (confidence <= m / bins)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return error


def figures():
    found = {}
    for number, case in enumerate(CASES):
        scores, targets = random_scores(*case)
        values = [over_classes(auroc, scores, targets), over_classes(average_precision, scores, targets),
                  calibration_error(scores, targets, 15), calibration_error(scores, targets, 4)]
        found |= {f"{number}.scores": torch.tensor(scores), f"{number}.targets": torch.tensor(targets),
                  f"{number}.values": torch.tensor(values, dtype=torch.float64)}
    return found


def labels():
    """Several of which each sample may have."""
    random = np.random.default_rng(9)
    scores, targets = random.normal(size=(60, 4)), random.integers(0, 2, (60, 4))
    values = [over_classes(auroc, scores, targets), over_classes(average_precision, scores, targets)]
    return {"labels.scores": torch.tensor(scores), "labels.targets": torch.tensor(targets),
            "labels.values": torch.tensor(values, dtype=torch.float64)}


def mixed_bits(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def drawn_angle(degrees, seed, index):
    """What RandomRotation draws for a sample in the first pass: SampleRandom's first number."""
    state = mixed_bits(mixed_bits(mixed_bits(seed)) + index)
    return (2 * (mixed_bits(state + 0x9E3779B97F4A7C15) >> 11) * 2.0**-53 - 1) * degrees


def moved(planes, change):
    """Each channel on its own, as float32, so that nothing is rounded."""
    return np.stack([np.asarray(change(Image.fromarray(plane, mode="F"))) for plane in planes])


def pictures():
    random = np.random.default_rng(7)
    found = {}
    # No pixel's middle falls on the border of two: which of them is nearest is then a matter of rounding.
    sizes = [((20, 30), (8, 14)), ((9, 8), (32, 24)), ((16, 16), (16, 32)), ((31, 17), (12, 40))]
    for number, (size, new_size) in enumerate(sizes):
        planes = random.random((3, *size), dtype=np.float32)
        mask = random.integers(0, 20, size).astype(np.int64)
        width_first = new_size[::-1]
        resized = moved(planes, lambda plane: plane.resize(width_first, Image.Resampling.BILINEAR))
        labels = np.asarray(Image.fromarray(mask.astype(np.uint8)).resize(width_first, Image.Resampling.NEAREST))
        # Where Pillow reads outside of the picture it blends in another way: such pixels are not compared.
        angle = drawn_angle(60, 5, 0)
        turned = moved(planes, lambda plane: plane.rotate(angle, Image.Resampling.BILINEAR, fillcolor=-1e6))
        inner = np.zeros(size, dtype=np.float32)
        inner[1:-1, 1:-1] = 1
        inside = np.asarray(Image.fromarray(inner, mode="F").rotate(angle, Image.Resampling.BILINEAR, fillcolor=0)) > 0.999
        found |= {f"{number}.{name}": torch.tensor(value) for name, value in
                  {"image": planes[None], "mask": mask[None], "resized": resized, "labels": labels.astype(np.int64),
                   "turned": turned, "inside": inside.astype(np.int64)}.items()}
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "figures.safetensors", figures() | labels())
    write_safetensors(folder / "pictures.safetensors", pictures())
    if importlib.util.find_spec("sklearn") is not None:
        import class_references

        write_safetensors(folder / "classes.safetensors", dict(class_references.references()))


if __name__ == "__main__":
    main()
