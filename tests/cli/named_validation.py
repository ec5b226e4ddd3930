"""Checks a config whose data.val holds several datasets by name.

usage: named_validation.py PROGRAM
"""

import random

from program import Program, run_checks

CONFIG = """
model: {type: Mlp, in_features: 2, hidden: [8], num_classes: 2}
data:
  train: {type: Csv, path: clean.csv, target: kind, features: [a, b], batch_size: 16, shuffle: true}
  val:
    clean: {type: Csv, path: clean.csv, target: kind, features: [a, b], batch_size: 32}
    noisy: {type: Csv, path: noisy.csv, fit_on: clean.csv, target: kind, features: [a, b], batch_size: 8}
trainer: {max_steps: 24, val_interval: 8}
optim_wrapper: {optimizer: {type: Adam, lr: 0.02}}
default_hooks: {checkpoint: {interval: 0, save_best: noisy/accuracy}}
custom_hooks: [{type: EarlyStoppingHook, monitor: noisy/loss, patience: 9}]
evaluator: [{type: Accuracy}]
"""
NAMES = {f"{data}/{metric}" for data in ("clean", "noisy") for metric in ("accuracy", "loss")}


class NamedProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        numbers = random.Random(2)
        for name, count, noise in (("clean", 96, 0.0), ("noisy", 40, 0.8)):
            rows = "a,b,kind\n"
            for _ in range(count):
                a, b = numbers.gauss(0, 1), numbers.gauss(0, 1)
                rows += f"{a:.5f},{b:.5f},{'right' if a + b + numbers.gauss(0, noise) > 0 else 'left'}\n"
            self.write(f"{name}.csv", rows)
        self.write("named.yaml", CONFIG)


def check_training(program):
    results = []
    for mode in ("eager", "graph"):
        metrics = program.json("train", "named.yaml", f"mode={mode}", f"work_dir=runs/{mode}")["metrics"]
        assert set(metrics["final"]) == NAMES == set(metrics["best"]), metrics
        lines = program.records(f"runs/{mode}", "val")
        assert [line["step"] for line in lines] == [8, 16, 24], lines
        results.append([{name: line[name] for name in NAMES} for line in lines])
    assert results[0] == results[1], results
    assert results[0][-1]["clean/accuracy"] > results[0][-1]["noisy/accuracy"], results[0][-1]
    program.run("compare", "named.yaml", "--steps", "10")
    program.run("profile", "named.yaml", "--steps", "2")
    program.run("find", "batch_size", "named.yaml")


def check_evaluation(program):
    best = max(program.records("runs/eager", "val"), key=lambda metrics: metrics["noisy/accuracy"])
    best = {name: best[name] for name in NAMES}
    result = program.json("eval", "named.yaml", "work_dir=runs/eager")
    assert result["metrics"] == best, (result, best)
    text = program.run("eval", "named.yaml", "work_dir=runs/eager", "--checkpoint", "latest")
    assert "on 136 samples of data.val.clean, data.val.noisy" in text, text
    one = program.json("eval", "named.yaml", "work_dir=runs/eager",
                       "data.test={type: Csv, path: noisy.csv, fit_on: clean.csv, target: kind, features: [a, b], batch_size: 8}")
    assert one["metrics"] == {name: best[f"noisy/{name}"] for name in ("accuracy", "loss")}, one
    text = program.run("predict", "named.yaml", "work_dir=runs/eager", code=2)
    assert "data.val.clean, data.val.noisy" in text and "predict" in text, text


def check_base_and_limits(program):
    program.write("less.yaml", "_base_: named.yaml\n"
                  "data: {val: {noisy: null, rare: {type: Csv, path: noisy.csv, fit_on: clean.csv, target: kind, features: [a, b]}}}\n"
                  "default_hooks: {checkpoint: {save_best: rare/loss}}\ncustom_hooks: []\n")
    final = program.json("train", "less.yaml", "work_dir=runs/less", "trainer.limit_val_batches=1")["metrics"]["final"]
    assert {name.split("/")[0] for name in final} == {"clean", "rare"}, final
    program.run("train", "named.yaml", "work_dir=runs/dry", "--dry-run")


def check_mistakes(program):
    program.refuses([
        ("clean/accuracy", 2, "default_hooks.checkpoint.save_best=accuracy"),
        ("noisy/loss", 2, "custom_hooks=[{type: EarlyStoppingHook, monitor: noise/loss}]"),
        ("data.val.type", 2, "~data.val.clean", "~data.val.noisy"),
        ("letters, digits", 2, "data.val={'a b': {type: Csv, path: clean.csv, target: kind, features: [a, b]}}"),
        ("beside datasets that have names", 2, "data.val.batch_size=4"),
        ("data.val.noisy.type", 2, "~data.val.noisy.type"),
        ("a count, which holds for each", 2, "trainer.limit_val_batches=0.5")], "train", "named.yaml", "work_dir=runs/wrong")


if __name__ == "__main__":
    run_checks(NamedProgram, check_training, check_evaluation, check_base_and_limits, check_mistakes)
