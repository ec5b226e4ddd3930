#!/usr/bin/env python3
"""The config that a run leaves behind gives the same run again.

usage: rerun_config.py PROGRAM

Each case trains from files with bases, environment variables and overrides, then from <work_dir>/config.yaml alone,
without any of these, and expects the same losses and weights. The comments of the resolved config name where each
value came from. Texts of the environment alone, which may be secrets, stand in it by name.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import bad_input_cases

BASES = {
    "bases/data.yaml": """\
data:
  train: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 16}
  val: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: "${env:DUET_TEST_BATCH,32}"}
""",
    "bases/run.yaml": """\
trainer:
  max_steps: ${env:DUET_TEST_STEPS}
  val_interval: 4
optim_wrapper:
  optimizer:
    type: AdamW
    lr: 1.0e-3
    betas:
      - 0.9
      - 0.95
  clip_grad: {max_norm: 1.0}
param_scheduler:
  - {type: Linear, end: 2}
default_hooks: {checkpoint: {interval: 4}, logger: {interval: 2}}
evaluator: [{type: Accuracy}]
""",
    "cnn.yaml": """\
_base_: [bases/data.yaml, bases/run.yaml]
work_dir: runs/cnn_${env:DUET_TEST_NAME}
model: {type: SmallCnn, channels: [4], dropout: 0.2}
seed: 5
""",
    "mlp.yaml": """\
_base_: cnn.yaml
work_dir: "runs/mlp $${x}"
model: {_delete_: true, type: Mlp, hidden: [16], dropout: 0.1}
optim_wrapper:
  optimizer: {_delete_: true, type: SGD, lr: 0.05, momentum: 0.9, nesterov: true}
  clip_grad: null
  paramwise_cfg: {custom_keys: {hidden1.weight: {lr_mult: 0.5}}, bias_decay_mult: 0}
custom_hooks: [{type: EMAHook, momentum: 0.01}]
trainer: {accumulate: 2}
""",
}

# Config, overrides, and parts of the resolved config.
CASES = [
    ("cnn.yaml", [], [r"max_steps: 6  # bases/run\.yaml:2, env DUET_TEST_STEPS\n", r"seed: 5  # cnn\.yaml:4\n",
                      r"batch_size: 32  # bases/data\.yaml:3, env DUET_TEST_BATCH unset\n",
                      r"betas:  # bases/run\.yaml:8\n +- 0\.9  # bases/run\.yaml:9\n +- 0\.95  # bases/run\.yaml:10\n",
                      r"weight_decay: 0\.01  # default\n", r'work_dir: "runs/cnn_\$\{env:DUET_TEST_NAME\}"  # cnn\.yaml']),
    ("cnn.yaml", ["optim_wrapper.optimizer.betas.1=0.99", "model.channels.1=8", "~optim_wrapper.clip_grad", "mode=graph",
                  "work_dir=runs/graph", "param_scheduler.1={type: Cosine, begin: 2}", "optim_wrapper.amp=bf16"],
     [r"- 0\.99  # command line\n", r"channels:  # cnn\.yaml:3\n +- 4  # cnn\.yaml:3\n +- 8  # command line\n",
      r"mode: graph  # command line\n", r"begin: 2  # command line\n"]),
    ("mlp.yaml", [], [r"nesterov: true  # mlp\.yaml:5\n", r"clip_grad: null  # mlp\.yaml:6\n", r"hidden1\.weight:",
                      r'work_dir: "runs/mlp \$\$\{x\}"  # mlp\.yaml:2\n']),
    ("mlp.yaml", ["custom_hooks.0.type=EMAHook", "optim_wrapper.optimizer._delete_=true", "optim_wrapper.optimizer.type=Lion",
                  "optim_wrapper.paramwise_cfg.custom_keys.'hidden1.weight'.lr_mult=${env:DUET_TEST_UNSET,0.25}", "mode=graph",
                  "work_dir=runs/lion", "trainer.max_steps=5", "default_hooks.logger=null"],
     [r"type: Lion  # command line\n", r"lr_mult: 0\.25  # command line, env DUET_TEST_UNSET unset\n", r"logger: null  # command line\n"]),
]


def train(program, folder, report, arguments, environment):
    done = subprocess.run([program, "train", *arguments, "--json", report], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=300, check=False)
    if done.returncode != 0:
        return None, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    result = json.loads((folder / report).read_text())
    return (result["losses"], result["weights_hash"], result["mode"], result["steps"]), ""


def without_comments(text):
    return re.sub(r" *#.*", "", text)


def check(program, folder, case):
    config, overrides, parts = case
    given = {**os.environ, "DUET_TEST_STEPS": "6", "DUET_TEST_NAME": "a b"}
    first, problem = train(program, folder, "first.json", [config, *overrides], given)
    if problem:
        return [problem]
    work_dir = next((path.split("=", 1)[1] for path in overrides if path.startswith("work_dir=")),
                    {"cnn.yaml": "runs/cnn_a b", "mlp.yaml": "runs/mlp ${x}"}[config])
    resolved = folder / work_dir / "config.yaml"
    text = resolved.read_text()
    problems = [f"no match for {part} in\n{text}" for part in parts if not re.search(part, text)]
    again, problem = train(program, folder, "again.json", [str(resolved.relative_to(folder))],
                           {**os.environ, "DUET_TEST_NAME": "a b"})
    if problem:
        return problems + [problem]
    if first != again:
        problems.append(f"another run: {first} and {again}\n{text}")
    if without_comments(resolved.read_text()) != without_comments(text):
        problems.append(f"the resolved config of the second run differs:\n{text}\n{resolved.read_text()}")
    return problems


def main():
    program = os.path.abspath(sys.argv[1])
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bad_input_cases.write_data(folder / "data")
        for path, text in BASES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        for case in CASES:
            problems = check(program, folder, case)
            failed += bool(problems)
            print(f"{'FAILED' if problems else 'same run'}: {case[0]} {' '.join(case[1])}")
            for problem in problems:
                print(problem)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
