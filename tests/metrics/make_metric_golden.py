#!/usr/bin/env python3
"""Writes metric_golden.inc: what scikit-learn and numpy make of the samples that metric_golden_test.cpp makes too.

usage: make_metric_golden.py > metric_golden.inc        (any Python with scikit-learn; made with 1.9.1)
"""

import numpy as np
import sklearn
import sklearn.metrics as sk

IGNORE = 255
# samples, classes, a class that never occurs (-1: none), every how many samples one is ignored (0: none), seed
CASES = [(40, 2, -1, 0, 1), (300, 5, -1, 7, 2), (300, 5, 3, 7, 3), (64, 10, 0, 0, 4), (6, 12, 5, 3, 5), (2000, 21, 20, 11, 6)]


def mix(x):
    """A hash of 32 bits, so that C++ can make the same numbers."""
    x = np.asarray(x, dtype=np.uint64) & 0xFFFFFFFF
    for _ in range(2):
        x = ((x >> np.uint64(16)) ^ x) * np.uint64(0x45D9F3B) & np.uint64(0xFFFFFFFF)
    return (x >> np.uint64(16)) ^ x


def samples(count, classes, absent, ignore_every, seed):
    target = (mix(np.arange(count) + 1_000_003 * seed) % np.uint64(classes)).astype(np.int64)
    scores = mix(np.arange(count * classes) + 7_000_001 * seed).reshape(count, classes) / 2.0**32
    if absent >= 0:
        target[target == absent] = (absent + 1) % classes
        scores[:, absent] = -1
    odd = np.arange(1, count, 2)
    scores[odd, target[odd]] += 0.5
    if classes > 2:  # one class that is there but never right
        scores[target == 1, 1] = -0.5
    counted = np.ones(count, dtype=bool)
    if ignore_every:
        counted[::ignore_every] = False
    return scores[counted], target[counted]


def results(scores, target, classes):
    predicted = scores.argmax(1)
    every, present = range(classes), sorted(set(target) | set(predicted))
    both = {"labels": every, "average": None, "zero_division": np.nan}
    f = {beta: sk.fbeta_score(target, predicted, beta=beta, labels=present, average="macro", zero_division=0) for beta in (1, 2)}
    per_class = sk.f1_score(target, predicted, **both)
    values = {
        "accuracy": sk.accuracy_score(target, predicted),
        "mIoU": sk.jaccard_score(target, predicted, labels=present, average="macro"),
        "mAcc": np.nanmean(sk.recall_score(target, predicted, **both)),
        "mDice": f[1],
        "mFscore": f[1],
        "mFscore_beta2": f[2],
        "mPrecision": np.nanmean(sk.precision_score(target, predicted, **both)),
        "mRecall": np.nanmean(sk.recall_score(target, predicted, **both)),
        "f1_macro": f[1],
        "f1_micro": sk.f1_score(target, predicted, average="micro"),
        "f1_weighted": sk.f1_score(target, predicted, average="weighted", zero_division=0),
    }
    if classes > 2:
        for k in (2, classes - 1):
            values[f"accuracy/top{k}"] = sk.top_k_accuracy_score(target, scores, k=k, labels=every)
    for c in every:
        values[f"f1_{c}"] = per_class[c]
    for normalize in (None, "true", "pred", "all"):
        matrix = sk.confusion_matrix(target, predicted, labels=every, normalize=normalize)
        values[f"confusion_{normalize or 'none'}"] = float((matrix * mix(np.arange(classes**2)).reshape(matrix.shape)).sum())
    return values


def text(value):
    return "NAN" if np.isnan(value) else repr(float(value))


def main():
    print("// Written by make_metric_golden.py with scikit-learn", sklearn.__version__ + ", numpy", np.__version__ + ".")
    print("// samples, classes, absent class, ignored every, seed, {name, value}...")
    for case in CASES:
        scores, target = samples(*case)
        pairs = [f'{{"{name}", {text(value)}}}' for name, value in results(scores, target, case[1]).items()]
        lines = ",\n  ".join(", ".join(pairs[i : i + 4]) for i in range(0, len(pairs), 4))
        print("{" + ", ".join(map(str, case)) + ", {\n  " + lines + "}},")


if __name__ == "__main__":
    main()
