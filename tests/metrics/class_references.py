"""What scikit-learn makes of random samples, some of which do not count; make_references.py writes it down."""

import numpy as np
import sklearn.metrics as sk
import torch

IGNORE = 255
# samples, classes, a class that never occurs (-1: none), every how many samples one is ignored (0: none)
CASES = [(40, 2, -1, 0), (300, 5, -1, 7), (300, 5, 3, 7), (64, 10, 0, 0), (6, 12, 5, 3), (2000, 21, 20, 11)]


def samples(count, classes, absent, ignore_every):
    random = np.random.default_rng(count + classes + ignore_every)
    target = random.integers(0, classes, count)
    scores = random.random((count, classes))
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
    return scores, target, counted


def figures(scores, target, classes):
    predicted = scores.argmax(1)
    every, present = range(classes), sorted(set(target) | set(predicted))
    each = {"labels": every, "average": None, "zero_division": np.nan}
    f = {beta: sk.fbeta_score(target, predicted, beta=beta, labels=present, average="macro", zero_division=0) for beta in (1, 2)}
    yield "accuracy", sk.accuracy_score(target, predicted)
    yield "mIoU", sk.jaccard_score(target, predicted, labels=present, average="macro")
    yield "mAcc", np.nanmean(sk.recall_score(target, predicted, **each))
    for name in ("mDice", "mFscore", "f1_macro"):
        yield name, f[1]
    yield "mFscore_beta2", f[2]
    yield "mPrecision", np.nanmean(sk.precision_score(target, predicted, **each))
    yield "mRecall", np.nanmean(sk.recall_score(target, predicted, **each))
    yield "f1_micro", sk.f1_score(target, predicted, average="micro")
    yield "f1_weighted", sk.f1_score(target, predicted, average="weighted", zero_division=0)
    for k in (2, classes - 1) if classes > 2 else ():
        yield f"accuracy/top{k}", sk.top_k_accuracy_score(target, scores, k=k, labels=every)
    for label, value in enumerate(sk.f1_score(target, predicted, **each)):
        yield f"f1_{label}", value
    for normalize in (None, "true", "pred", "all"):
        matrix = sk.confusion_matrix(target, predicted, labels=every, normalize=normalize)
        for (row, column), value in np.ndenumerate(matrix):  # 0 for shares of nothing
            yield f"{normalize or 'none'}/confusion_{row}_{column}", value


def references():
    """CASE.scores, CASE.target; CASE.figures.NAME, which slashes part from its prefix."""
    for number, case in enumerate(CASES):
        scores, target, counted = samples(*case)
        for name, value in figures(scores[counted], target[counted], case[1]):
            yield f"{number}.figures.{name}", torch.tensor(float(value), dtype=torch.float64)
        target[~counted] = IGNORE
        yield f"{number}.scores", torch.tensor(scores)
        yield f"{number}.target", torch.tensor(target)
