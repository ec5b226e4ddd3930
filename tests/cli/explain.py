"""Checks `duet explain`: the table, and the JSON of DESIGN.

usage: explain.py PROGRAM
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

CONFIG = """
model: {type: SmallCnn, channels: [4, 8], num_classes: 3, image_size: 8}
trainer: {max_updates: 40}
optim_wrapper:
  optimizer: {type: AdamW, lr: 0.5, weight_decay: 0.25}
  paramwise_cfg:
    norm_decay_mult: 0.0
    bias_decay_mult: 0.0
    custom_keys: {head: {lr_mult: 2.0}, hed: {lr_mult: 3.0}}
param_scheduler: [{type: Linear, start_factor: 0.5, end: 5}]
"""


def explain(program, folder, *arguments):
    target = folder / "explained.json"
    done = subprocess.run([program, "explain", *arguments, "--json", str(target)], cwd=folder, capture_output=True,
                          text=True, check=False)
    return done, json.loads(target.read_text()) if done.returncode == 0 else None


def check_groups(done, result):
    groups = result["param_groups"]
    by_parameter = {name: group for group in groups for name in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(by_parameter), "a parameter is in two groups"
    head = by_parameter["head.weight"]
    assert head["lr"] == 1.0 and head["weight_decay"] == 0.25, head  # without the warm-up
    conv = by_parameter["conv1.weight"]
    assert conv["lr"] == 0.5 and conv["weight_decay"] == 0.25, conv
    assert all(g["weight_decay"] == 0 for n, g in by_parameter.items() if n.endswith("bias") and not n.startswith("head")), groups
    assert "hed" in done.stderr and "head" in done.stderr, done.stderr
    for group in groups:
        assert f" {len(group['params'])} " in done.stdout and f" {group['elements']}" in done.stdout, done.stdout


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "c.yaml").write_text(CONFIG, encoding="utf-8")
        done, result = explain(program, folder, "c.yaml")
        assert done.returncode == 0, done.stderr
        print(done.stdout, done.stderr)
        assert sorted(result) == ["graph", "hook_order", "param_groups", "schedule"], sorted(result)
        check_groups(done, result)
        order = result["hook_order"]
        assert order["after_train_iter"] and order["after_train_iter"] == order["before_train"], order
        rates = result["schedule"]["lr"]
        groups = result["param_groups"]
        assert len(rates) == 40 and all(len(row) == len(groups) for row in rates)
        head = next(i for i, group in enumerate(groups) if "head.weight" in group["params"])
        assert rates[0][head] == 0.5 and rates[4][head] == rates[39][head] == 1.0, rates
        assert not (folder / "runs").exists(), "explain left files behind"

        done, result = explain(program, folder, "c.yaml", "param_scheduler=null", "trainer.max_updates=3000")
        assert len(result["schedule"]["lr"]) == 2000, len(result["schedule"]["lr"])

        gap = "param_scheduler=[{type: Linear, end: 5}, {type: Cosine, begin: 9}]"
        done, result = explain(program, folder, "c.yaml", gap)
        assert done.returncode == 0 and "between 5 and 9" in done.stderr, done.stderr

        # Data that is not there costs only what counts its epochs.
        data = "data={train: {type: Text, path: nowhere}}"
        done, result = explain(program, folder, "c.yaml", data, "param_scheduler=[{type: Step, step_size: 1, by_epoch: true}]")
        assert done.returncode == 0 and "schedules are left out" in done.stderr, done.stderr

        done, _ = explain(program, folder, "c.yaml", "optim_wrapper.constructor=LearningRateDecayOptimizerConstructor",
                          "optim_wrapper.paramwise_cfg={num_layers: 2, decay_rate: 0.9}")
        assert done.returncode == 2 and "Task::layer_depth" in done.stderr and "Traceback" not in done.stderr, done.stderr
    print("explain: all checks passed")


if __name__ == "__main__":
    main()
