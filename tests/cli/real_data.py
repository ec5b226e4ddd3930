"""Trains on scikit-learn's digits as pictures and breast cancer data as a table: as good as scikit-learn's own classifiers.

Needs scikit-learn, which scripts/test installs, and is skipped without it.

usage: real_data.py PROGRAM
"""

import sys

from file_bytes import picture
from program import Program, run_checks

DIGITS = """
model: {type: SmallCnn, num_classes: 10, image_size: 8, channels: [32, 64]}
data:
  train:
    type: ImageFolder
    root: digits/train
    channels: 1
    batch_size: 32
    shuffle: true
    transforms: [{type: Crop, size: 8, padding: 1}, {type: Normalize}]
  val: {type: ImageFolder, root: digits/test, channels: 1, batch_size: 64, transforms: [{type: Normalize}]}
trainer: {max_epochs: 30}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.003}}
param_scheduler: [{type: Cosine}]
evaluator: [{type: Accuracy}, {type: ConfusionMatrix, num_classes: 10}]
"""

TABLE = """
model: {type: Mlp, in_features: 30, hidden: [128], num_classes: 2}
data:
  train: {type: Csv, path: train.csv, target: diagnosis, batch_size: 32, shuffle: true}
  val: {type: Csv, path: test.csv, batch_size: 64}
trainer: {max_epochs: 60}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.003}}
param_scheduler: [{type: Cosine}]
evaluator: [{type: Accuracy}, {type: ConfusionMatrix, num_classes: 2}]
"""


def split(data):
    """Rows to train on and rows to test with, a quarter."""
    import numpy
    order = numpy.random.RandomState(0).permutation(len(data.target))
    test = round(len(order) / 4)
    return order[test:], order[:test]


def best_of_sklearn(data):
    """The accuracy of its better classifier on the same rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    train, test = split(data)
    models = (LogisticRegression(max_iter=5000), MLPClassifier((64,), max_iter=2000, random_state=0))
    return max(make_pipeline(StandardScaler(), model).fit(data.data[train], data.target[train]).score(data.data[test], data.target[test])
               for model in models)


def write_digits(program, data):
    for part, rows in zip(("train", "test"), split(data)):
        for row in rows:
            pixels = bytes(int(level * 15) for level in data.data[row])
            program.write(f"digits/{part}/{data.target[row]}/{row:04}.png", picture(8, 8, pixels, 0))
    program.write("digits.yaml", DIGITS)


def write_table(program, data):
    names = [name.replace(" ", "_") for name in data.feature_names]
    for part, rows in zip(("train", "test"), split(data)):
        lines = [",".join([*map(repr, map(float, data.data[row])), str(data.target_names[data.target[row]])]) for row in rows]
        program.write(f"{part}.csv", "\n".join([",".join([*names, "diagnosis"]), *lines]) + "\n")
    program.write("table.yaml", TABLE)


def train(program, config):
    """The accuracy of the last validation, and the weights' hash, which both modes share."""
    results = []
    for mode in ("eager", "graph"):
        results.append(program.json("train", config, "--mode", mode, f"work_dir=runs/{config}/{mode}"))
    assert results[0]["weights_hash"] == results[1]["weights_hash"], results
    program.run("report", f"runs/{config}/eager", f"runs/{config}/graph", "--output", "report.html")
    return results[0]["metrics"]["final"]["accuracy"]


def check_as_good_as_sklearn(program):
    for config, load, write_data, class_name in (("digits.yaml", "load_digits", write_digits, "9"),
                                                 ("table.yaml", "load_breast_cancer", write_table, "malignant")):
        data = getattr(sklearn_datasets, load)()
        write_data(program, data)
        assert len((program.folder / config).read_text().strip().splitlines()) <= 25
        ours, theirs = train(program, config), best_of_sklearn(data)
        print(f"{config}: accuracy {ours:.4f}, scikit-learn {theirs:.4f}")
        assert ours >= theirs - 0.01, (config, ours, theirs)
        log = (program.folder / f"runs/{config}/graph/log.jsonl").read_text()
        assert f"  {class_name}" in log[log.rindex("target \\\\ predicted"):], "the matrix names no classes"


if __name__ == "__main__":
    try:
        from sklearn import datasets as sklearn_datasets
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    run_checks(Program, check_as_good_as_sklearn)
