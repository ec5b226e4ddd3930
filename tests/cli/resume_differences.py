#!/usr/bin/env python3
"""What a resume says where its config, data or processes are not those of the run that saved, what it then trains with, and
what config.yaml says of that.

usage: resume_differences.py PROGRAM
"""

import json
import os
import pathlib
import re
import sys
import tempfile

from program import Program

CONFIG = """
work_dir: run
seed: 3
model: {type: Mlp, in_features: 4, num_classes: 3, hidden: [8], dropout: 0.1, loss: cross_entropy}
data: {train: {type: Csv, path: rows.csv, target: label, batch_size: 4, shuffle: true}}
trainer: {max_steps: 4}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.01, weight_decay: 0.1}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Linear, start_factor: 0.5, end: 100}]
default_hooks: {checkpoint: {interval: 2}, logger: {interval: 1}}
"""


def expect(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def write_rows(path, first):
    rows = [f"{i},{(first + 1) * i % 11},{i % 7},{i % 3},{i % 3}" for i in range(40)]
    path.write_text("a,b,c,d,label\n" + "\n".join(rows) + "\n", encoding="utf-8")


def rates(folder, run):
    lines = [json.loads(line) for line in (folder / run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line["lr"] for line in lines if line["kind"] == "train"}


def config_of(folder, run):
    return (folder / run / "config.yaml").read_text(encoding="utf-8")


def manifest_of(folder, run, step):
    return json.loads((folder / run / f"checkpoints/step-{step}/manifest.json").read_text(encoding="utf-8"))["run"]


class Case:
    """Resumes copies of one run of 4 steps."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def resume(self, name, *words, code=0):
        return self.program.run("train", "config.yaml", f"work_dir={name}", "--resume", "run", "trainer.max_steps=8", *words,
                                code=code)

    def hash_of(self, name):
        found = self.program.run("inspect", f"{name}/checkpoints/step-8")
        return re.findall(r"model\..*", found)


def says_nothing_where_nothing_differs(case):
    text = case.resume("same", "trainer.max_steps=8", "--mode", "graph")
    expect("differs" not in text and "is not what" not in text, f"expected no word of differences:\n{text}")
    parent = manifest_of(case.folder, "same", 8)["parent"]
    expect(parent.endswith("run/checkpoints/step-4"), f"found the parent {parent}")


def nothing_is_left_to_do(case):
    def times():
        return {path: path.stat().st_mtime_ns for path in (case.folder / "same/checkpoints").rglob("*")}

    before = times()
    text = case.program.run("train", "config.yaml", "work_dir=same", "trainer.max_steps=8", "--resume", "auto")
    expect("info step " not in text and times() == before, f"a finished run was resumed and did something:\n{text}")


def a_run_begins_afresh(case):
    """Without --resume, in the work_dir of a longer run: the newest checkpoint is that of the new run."""
    wish = ("train", "config.yaml", "work_dir=afresh")
    case.program.run(*wish, "trainer.max_steps=8")
    text = case.program.run(*wish)
    expect("checkpoints.1" in text, f"expected a line that tells where the earlier checkpoints are:\n{text}")
    text = case.program.run(*wish, "trainer.max_steps=6", "--resume", "auto")
    expect(re.search(r"resumed from .*step-4'", text), text)


def checkpoint_wins(case):
    text = case.resume("kept", "optim_wrapper.optimizer.lr=0.05", "seed=9", "model.dropout=0.2")
    for line in (r"optim_wrapper.optimizer.lr: 0.01 there, 0.05 here; that of the checkpoint is used",
                 r"model.dropout: 0.1 there, 0.2 here; this one is used",
                 r"seed: 3 there, 9 here; that of the checkpoint is used"):
        expect(re.search(line, text), f"expected '{line}' in:\n{text}")
    expect("--hyper-parameters config" in text, "expected the way out")
    config = config_of(case.folder, "kept")
    for line in (r"lr: 0.01  # checkpoint .*step-4", r"dropout: 0.2", r"^seed: 3  # checkpoint .*step-4"):
        expect(re.search(line, config, re.M), f"expected '{line}' in config.yaml:\n{config}")
    saved = manifest_of(case.folder, "kept", 8)["config"]
    expect(saved["optim_wrapper.optimizer.lr"] == "0.01" and saved["seed"] == "3" and saved["model.dropout"] == "0.2",
           f"the checkpoint says {saved}")
    expect(rates(case.folder, "kept")[8] == rates(case.folder, "same")[8], "expected the learning rates of the checkpoint")


def config_wins(case):
    text = case.resume("changed", "optim_wrapper.optimizer.lr=0.05", "--hyper-parameters", "config")
    expect(re.search(r"lr: 0.01 there, 0.05 here; this one is used", text), text)
    expect(re.search(r"lr: 0.05  # command line", config_of(case.folder, "changed")), config_of(case.folder, "changed"))
    here, there = rates(case.folder, "changed"), rates(case.folder, "same")
    for step in range(5, 9):
        expect(abs(here[step] - 5 * there[step]) < 1e-12, f"found learning rates {here}, expected 5 times those of {there}")


def the_record_reproduces_the_run(case):
    """config.yaml of a resumed run, resumed again from the same checkpoint, trains the same without a word."""
    text = case.program.run("train", "kept/config.yaml", "work_dir=again", "--resume", "run")
    expect("lr:" not in text and "seed:" not in text, text)
    expect(case.hash_of("again") == case.hash_of("kept"), "expected the same weights")


def other_data(case):
    write_rows(case.folder / "other.csv", 100)
    text = case.resume("other", "data.train.path=other.csv", "data.train.fit_on=rows.csv")
    expect(re.search(r"training data is not what .*: Csv, 40 samples, \w+ here, Csv, 40 samples, \w+ there", text), text)


def other_world(case):
    text = case.program.run("launch", "-n", "2", "train", "config.yaml", "work_dir=two", "--resume", "run",
                            "trainer.max_steps=8", "data.train.batch_size=2")
    expect(re.search(r"saved by 1 processes, this run has 2", text), text)
    expect(manifest_of(case.folder, "two", 8)["world_size"] == 2, "the manifest has another world size")


def suspect(case):
    case.program.run("train", "config.yaml", "work_dir=odd", "--mode", "graph", "graph.check=off")
    place = case.folder / "odd/checkpoints"
    means = json.loads((place / "step-4/manifest.json").read_text(encoding="utf-8"))["unchecked"]
    expect(means["replays"] == 1 and "1 replays did not run their host code" in means["means"], means)
    (place / "step-4/suspect").write_text("the host code has changed\n", encoding="utf-8")
    text = case.program.run("inspect", "odd/checkpoints/step-4")
    for line in ("host code: 1 replays did not run", "SUSPECT: the host code has changed", "verified: every hash matches"):
        expect(line in text, f"expected '{line}' in:\n{text}")
    listed = [line for line in case.program.run("list", ".").splitlines() if line.startswith(("odd ", "run "))]
    expect(any("1, 1 in a row; suspect: step-4" in line for line in listed), listed)
    expect(any(re.search(r" 0  +\d", line) for line in listed if line.startswith("run ")), listed)
    text = case.program.run("train", "config.yaml", "work_dir=odd", "--resume", "auto", "--mode", "graph")
    expect(re.search(r"step-4' is suspect: the host code has changed; passing over it for .*step-2", text), text)
    expect(re.search(r"resumed from .*step-2", text) and "training ends at step 4" in text, text)
    expect("the host code of every step has run" in text, text)


def checkpoints_lie_elsewhere(case):
    wish = ("train", "config.yaml", "work_dir=far", "default_hooks.checkpoint.out_dir=scratch")
    case.program.run(*wish, "default_hooks.checkpoint.interval_time=30 min")
    place = case.folder / "scratch/far/checkpoints"
    expect((place / "step-4").is_dir() and (case.folder / "far/checkpoints").resolve() == place.resolve(), "not in out_dir")
    text = case.program.run(*wish, "--resume", "auto", "trainer.max_steps=6")
    expect(re.search(r"resumed from '.*scratch/far/checkpoints/step-4'", text), text)
    text = case.program.run("eval", "config.yaml", "work_dir=far", "data.val={type: Csv, path: rows.csv, target: label}",
                            "evaluator=[{type: Accuracy}]")
    expect("scratch/far/checkpoints/step-6" in text, text)
    expect("step-6" in case.program.run("inspect", "far"), "inspect does not find it")
    listed = case.program.run("list", ".")
    expect("far" in listed and "scratch" not in listed, listed)
    text = case.program.run(*wish)  # anew: those of the run before go beside theirs
    expect((place.parent / "checkpoints.1/step-6").is_dir() and (place / "step-4").is_dir(), text)


def a_run_that_fails_gives_an_earlier_one_its_place_back(case):
    config, diverges = ("train", "config.yaml", "work_dir=near"), "optim_wrapper.optimizer.lr=1e30"
    case.program.run(*config)
    wish = (*config, "default_hooks.checkpoint.out_dir=other")
    text = case.program.run(*wish, diverges, code=5)
    folder, place = case.folder / "near/checkpoints", case.folder / "other/near"
    expect((folder / "step-4").is_dir() and not folder.is_symlink() and not place.exists(), text)
    case.program.run(*wish)  # and from one out_dir to another
    text = case.program.run(*config, "default_hooks.checkpoint.out_dir=third", diverges, code=5)
    expect(folder.resolve() == (place / "checkpoints").resolve() and (folder / "step-4").is_dir(), text)


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        write_rows(folder / "rows.csv", 0)
        case = Case(Program(sys.argv[1], folder), folder)
        case.program.run("train", "config.yaml")
        saved = manifest_of(folder, "run", 4)
        expect(saved["world_size"] == 1 and saved["parent"] == "" and saved["data"].startswith("Csv, 40 samples, "), saved)
        for check in (says_nothing_where_nothing_differs, nothing_is_left_to_do, a_run_begins_afresh, checkpoint_wins, config_wins,
                      the_record_reproduces_the_run, other_data, other_world, suspect, checkpoints_lie_elsewhere,
                      a_run_that_fails_gives_an_earlier_one_its_place_back):
            check(case)
            print(check.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main()
