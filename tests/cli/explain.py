"""Checks `duet explain`: the tables, and the JSON of DESIGN.

usage: explain.py PROGRAM
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import bad_input_cases as cases

CONFIG = """
model: {type: SmallCnn, channels: [4, 8], num_classes: 3, image_size: 8}
trainer: {max_steps: 40}
optim_wrapper:
  optimizer: {type: AdamW, lr: 0.5, weight_decay: 0.25}
  paramwise_cfg:
    norm_decay_mult: 0.0
    bias_decay_mult: 0.0
    custom_keys: {head: {lr_mult: 2.0}, hed: {lr_mult: 3.0}}
param_scheduler: [{type: Linear, start_factor: 0.5, end: 5}]
"""

HOOKS = """
model: {type: SmallCnn, channels: [4, 8], num_classes: 3, image_size: 8}
trainer: {max_steps: 40}
default_hooks: {timer: null, sampler_seed: null, visualization: null, logger: {priority: 55}, checkpoint: {by_epoch: true}}
custom_hooks:
  - {type: EMAHook}
  - {type: EmptyCacheHook, priority: NORMAL}
  - {type: EarlyStoppingHook, monitor: loss}
"""

# What is printed for the run above: every point at which somebody acts, those with the same places together.
PLACES = """hooks by point, in calling order:
  before_run
    runtime_info     priority VERY_HIGH (10)
    stop_signal      priority VERY_HIGH (10); added after runtime_info
    logger           priority 55 instead of its own BELOW_NORMAL (60)
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


def check_hooks(program, folder):
    (folder / "hooks.yaml").write_text(HOOKS, encoding="utf-8")
    done, result = explain(program, folder, "hooks.yaml")
    assert done.returncode == 0, done.stderr
    assert PLACES in done.stdout, done.stdout
    assert "captured with the step: nan_guard, ema\n" in done.stdout and "splits" not in done.stdout, done.stdout
    assert done.stderr.count("the default hook 'logger'") == 1, done.stderr
    order, reasons = result["hook_order"], result["hook_reasons"]
    assert len(order) == 33 and list(order) == list(reasons), order
    assert order["after_val_epoch"] == ["ema", "empty_cache", "logger", "param_scheduler", "early_stopping"], order
    assert order["after_train_iter"] == ["nan_guard", "logger", "checkpoint"], order
    assert order["in_step"] == ["nan_guard", "ema"] and order["after_backward"] == [] == order["before_optimizer_step"], order
    assert reasons["after_val_epoch"]["empty_cache"] == "priority NORMAL (50); added after ema", reasons
    assert reasons["after_val_epoch"]["early_stopping"] == "priority LOWEST (100)", reasons
    for point, names in order.items():
        assert names == list(reasons[point]), (point, names, reasons[point])
    assert result["graph"]["captured_hooks"] == ["nan_guard", "ema"] and result["graph"]["split_by"] == [], result["graph"]
    # Its place follows the priority of the config.
    _, result = explain(program, folder, "hooks.yaml", "default_hooks.logger.priority=HIGHEST", "custom_hooks.0.priority=95")
    assert result["hook_order"]["after_val_epoch"] == ["logger", "empty_cache", "param_scheduler", "ema", "early_stopping"], result


def check_ranges(program, folder):
    """beta1 is 0.9 * (1 + 0.5 * s / 20), which reaches 1 at s = 4.4."""
    done, result = explain(program, folder, "c.yaml", "param_scheduler=[{type: LinearMomentum, start_factor: 1, end_factor: 1.5, end: 21}]")
    problem = result["schedule_problems"][0]
    assert "leaves the range of beta1 at step 5 in group 0" in problem and "[0, 1)" in problem, problem
    assert problem in done.stderr, done.stderr
    assert len(result["schedule_problems"]) == len(result["param_groups"]), result["schedule_problems"]
    _, result = explain(program, folder, "c.yaml")
    assert result["schedule_problems"] == [], result


def check_schedules(program, folder):
    done, result = explain(program, folder, "c.yaml")
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)
    assert sorted(result) == ["graph", "hook_order", "hook_reasons", "param_groups", "schedule", "schedule_problems"], sorted(result)
    check_groups(done, result)
    rates = result["schedule"]["lr"]
    groups = result["param_groups"]
    assert len(rates) == 40 and all(len(row) == len(groups) for row in rates)
    head = next(i for i, group in enumerate(groups) if "head.weight" in group["params"])
    assert rates[0][head] == 0.5 and rates[4][head] == rates[39][head] == 1.0, rates
    assert not (folder / "runs").exists(), "explain left files behind"

    done, result = explain(program, folder, "c.yaml", "param_scheduler=null", "trainer.max_steps=3000")
    assert len(result["schedule"]["lr"]) == 2000, len(result["schedule"]["lr"])

    gap = "param_scheduler=[{type: Linear, end: 5}, {type: Cosine, begin: 9}]"
    done, result = explain(program, folder, "c.yaml", gap)
    assert done.returncode == 0 and "between 5 and 9" in done.stderr, done.stderr

    # Data that is not there costs only what counts its epochs.
    data = "data={train: {type: Text, path: nowhere}}"
    done, result = explain(program, folder, "c.yaml", data, "param_scheduler=[{type: Step, step_size: 1, by_epoch: true}]",
                           "default_hooks.checkpoint.by_epoch=true")
    assert done.returncode == 0 and "schedules are left out" in done.stderr, done.stderr

    done, _ = explain(program, folder, "c.yaml", "optim_wrapper.constructor=LearningRateDecayOptimizerConstructor",
                      "optim_wrapper.paramwise_cfg={num_layers: 2, decay_rate: 0.9}")
    assert done.returncode == 2 and "Task::layer_depth" in done.stderr and "Traceback" not in done.stderr, done.stderr


STEP = {"captured", "reason", "obstacles", "splits", "keeps_tensors", "changes", "left_out", "hyper_parameters", "ops", "bytes",
        "replay_us", "eager_us"}


def check_step(program, folder):
    """In graph mode the first step of data.train is captured, and nothing is trained or written."""
    cases.write_data(folder / "data")
    (folder / "data.yaml").write_text(cases.BASE, encoding="utf-8")
    before = {path for path in folder.rglob("*")}
    done, result = explain(program, folder, "data.yaml", "--mode", "graph")
    assert done.returncode == 0, done.stderr
    graph = result["graph"]
    assert STEP <= set(graph), graph
    assert graph["captured"] and graph["obstacles"] == [] and graph["splits"] == [], graph
    assert graph["ops"]["recorded"] > graph["ops"]["needed"] >= graph["ops"]["instructions"] > 0, graph["ops"]
    assert graph["bytes"] > 0 and graph["replay_us"] > 0 and graph["eager_us"] > 0, graph
    reach = {(number["group"], number["name"]): number["reach"] for number in graph["hyper_parameters"]}
    assert {name for _, name in reach} == {"lr", "weight_decay", "beta1", "beta2", "eps"}, reach
    assert set(reach.values()) == {"changes the result"}, reach
    assert "the step is captured" in done.stdout and "reach the captured step: " in done.stdout, done.stdout
    assert {path.name for path in folder.rglob("*") if path not in before} <= {"explained.json"}, "explain left files behind"

    done, result = explain(program, folder, "data.yaml", "--mode", "eager")
    assert done.returncode == 0 and not STEP & set(result["graph"]), result["graph"]
    # Without data it says so, and still shows the rest.
    done, result = explain(program, folder, "c.yaml", "--mode", "graph")
    assert done.returncode == 0 and not result["graph"]["captured"], (done.stderr, result["graph"])
    assert "no batch" in result["graph"]["reason"] and "no batch" in done.stdout, done.stdout


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "c.yaml").write_text(CONFIG, encoding="utf-8")
        check_schedules(program, folder)
        check_hooks(program, folder)
        check_ranges(program, folder)
        check_step(program, folder)
    print("explain: all checks passed")


if __name__ == "__main__":
    main()
