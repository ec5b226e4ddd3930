#!/usr/bin/env python3
"""What a resume says where its config, data or processes are not those of the run that saved, what it then trains with, and
what config.yaml says of that.

usage: resume_differences.py PROGRAM
"""

import json
import re

from program import Program, run_checks

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


class Case(Program):
    """Resumes copies of one run of 4 steps."""

    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.write("config.yaml", CONFIG)
        self.write_rows("rows.csv", 0)
        self.run("train", "config.yaml")
        saved = self.manifest("run", 4)
        assert saved["world_size"] == 1 and saved["parent"] == "" and saved["data"].startswith("Csv, 40 samples, "), saved

    def write_rows(self, name, first):
        rows = [f"{i},{(first + 1) * i % 11},{i % 7},{i % 3},{i % 3}" for i in range(40)]
        self.write(name, "a,b,c,d,label\n" + "\n".join(rows) + "\n")

    def resume(self, name, *words, code=0):
        return self.run("train", "config.yaml", f"work_dir={name}", "--resume", "run", "trainer.max_steps=8", *words, code=code)

    def hash_of(self, name):
        return re.findall(r"model\..*", self.run("inspect", f"{name}/checkpoints/step-8"))

    def rates(self, run):
        return {record["step"]: record["lr"] for record in self.records(run, "train")}

    def config(self, run):
        return (self.folder / run / "config.yaml").read_text(encoding="utf-8")

    def manifest(self, run, step):
        return json.loads((self.folder / run / f"checkpoints/step-{step}/manifest.json").read_text(encoding="utf-8"))["run"]


def says_nothing_where_nothing_differs(case):
    text = case.resume("same", "trainer.max_steps=8", "--mode", "graph")
    assert "differs" not in text and "is not what" not in text, f"expected no word of differences:\n{text}"
    parent = case.manifest("same", 8)["parent"]
    assert parent.endswith("run/checkpoints/step-4"), f"found the parent {parent}"


def nothing_is_left_to_do(case):
    def times():
        return {path: path.stat().st_mtime_ns for path in (case.folder / "same/checkpoints").rglob("*")}

    before = times()
    text = case.run("train", "config.yaml", "work_dir=same", "trainer.max_steps=8", "--resume", "auto")
    assert "info step " not in text and times() == before, f"a finished run was resumed and did something:\n{text}"


def a_run_begins_afresh(case):
    """Without --resume, in the work_dir of a longer run: the newest checkpoint is that of the new run."""
    wish = ("train", "config.yaml", "work_dir=afresh")
    case.run(*wish, "trainer.max_steps=8")
    text = case.run(*wish)
    assert "checkpoints.1" in text, f"expected a line that tells where the earlier checkpoints are:\n{text}"
    text = case.run(*wish, "trainer.max_steps=6", "--resume", "auto")
    assert re.search(r"resumed from .*step-4'", text), text


def checkpoint_wins(case):
    text = case.resume("kept", "optim_wrapper.optimizer.lr=0.05", "seed=9", "model.dropout=0.2")
    for line in (r"optim_wrapper.optimizer.lr: 0.01 there, 0.05 here; that of the checkpoint is used",
                 r"model.dropout: 0.1 there, 0.2 here; this one is used",
                 r"seed: 3 there, 9 here; that of the checkpoint is used"):
        assert re.search(line, text), f"expected '{line}' in:\n{text}"
    assert "--hyper-parameters config" in text, "expected the way out"
    config = case.config("kept")
    for line in (r"lr: 0.01  # checkpoint .*step-4", r"dropout: 0.2", r"^seed: 3  # checkpoint .*step-4"):
        assert re.search(line, config, re.M), f"expected '{line}' in config.yaml:\n{config}"
    saved = case.manifest("kept", 8)["config"]
    assert saved["optim_wrapper.optimizer.lr"] == "0.01" and saved["seed"] == "3" and saved["model.dropout"] == "0.2", saved
    assert case.rates("kept")[8] == case.rates("same")[8], "expected the learning rates of the checkpoint"


def config_wins(case):
    text = case.resume("changed", "optim_wrapper.optimizer.lr=0.05", "--hyper-parameters", "config")
    assert re.search(r"lr: 0.01 there, 0.05 here; this one is used", text), text
    assert re.search(r"lr: 0.05  # command line", case.config("changed")), case.config("changed")
    here, there = case.rates("changed"), case.rates("same")
    for step in range(5, 9):
        assert abs(here[step] - 5 * there[step]) < 1e-12, f"found learning rates {here}, expected 5 times those of {there}"


def the_record_reproduces_the_run(case):
    """config.yaml of a resumed run, resumed again from the same checkpoint, trains the same without a word."""
    text = case.run("train", "kept/config.yaml", "work_dir=again", "--resume", "run")
    assert "lr:" not in text and "seed:" not in text, text
    assert case.hash_of("again") == case.hash_of("kept"), "expected the same weights"


def other_data(case):
    case.write_rows("other.csv", 100)
    text = case.resume("other", "data.train.path=other.csv", "data.train.fit_on=rows.csv")
    assert re.search(r"training data is not what .*: Csv, 40 samples, \w+ here, Csv, 40 samples, \w+ there", text), text


def other_world(case):
    text = case.run("launch", "-n", "2", "train", "config.yaml", "work_dir=two", "--resume", "run",
                            "trainer.max_steps=8", "data.train.batch_size=2")
    assert re.search(r"saved by 1 processes, this run has 2", text), text
    assert case.manifest("two", 8)["world_size"] == 2, "the manifest has another world size"


def suspect(case):
    case.run("train", "config.yaml", "work_dir=odd", "--mode", "graph", "graph.check=off")
    place = case.folder / "odd/checkpoints"
    means = json.loads((place / "step-4/manifest.json").read_text(encoding="utf-8"))["unchecked"]
    assert means["replays"] == 1 and "1 replays did not run their host code" in means["means"], means
    (place / "step-4/suspect").write_text("the host code has changed\n", encoding="utf-8")
    text = case.run("inspect", "odd/checkpoints/step-4")
    for line in ("host code: 1 replays did not run", "SUSPECT: the host code has changed", "verified: every hash matches"):
        assert line in text, f"expected '{line}' in:\n{text}"
    listed = [line for line in case.run("list", ".").splitlines() if line.startswith(("odd ", "run "))]
    assert any("1, 1 in a row; suspect: step-4" in line for line in listed), listed
    assert any(re.search(r" 0  +\d", line) for line in listed if line.startswith("run ")), listed
    text = case.run("train", "config.yaml", "work_dir=odd", "--resume", "auto", "--mode", "graph")
    assert re.search(r"step-4' is suspect: the host code has changed; passing over it for .*step-2", text), text
    assert re.search(r"resumed from .*step-2", text) and "training ends at step 4" in text, text
    assert "the host code of every step has run" in text, text


def checkpoints_lie_elsewhere(case):
    wish = ("train", "config.yaml", "work_dir=far", "default_hooks.checkpoint.out_dir=scratch")
    case.run(*wish, "default_hooks.checkpoint.interval_time=30 min")
    place = case.folder / "scratch/far/checkpoints"
    assert (place / "step-4").is_dir() and (case.folder / "far/checkpoints").resolve() == place.resolve(), "not in out_dir"
    text = case.run(*wish, "--resume", "auto", "trainer.max_steps=6")
    assert re.search(r"resumed from '.*scratch/far/checkpoints/step-4'", text), text
    text = case.run("eval", "config.yaml", "work_dir=far", "data.val={type: Csv, path: rows.csv, target: label}",
                            "evaluator=[{type: Accuracy}]")
    assert "scratch/far/checkpoints/step-6" in text, text
    assert "step-6" in case.run("inspect", "far"), "inspect does not find it"
    listed = case.run("list", ".")
    assert "far" in listed and "scratch" not in listed, listed
    text = case.run(*wish)  # anew: those of the run before go beside theirs
    assert (place.parent / "checkpoints.1/step-6").is_dir() and (place / "step-4").is_dir(), text


if __name__ == "__main__":
    run_checks(Case, says_nothing_where_nothing_differs, nothing_is_left_to_do, a_run_begins_afresh, checkpoint_wins, config_wins,
               the_record_reproduces_the_run, other_data, other_world, suspect, checkpoints_lie_elsewhere)
