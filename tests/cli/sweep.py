"""Checks `duet sweep`: a run for each combination, ranked, gone on with, stopped early.

usage: sweep.py PROGRAM
"""

import random
import shlex
import signal
import subprocess
import time

from program import Program, run_checks

CONFIG = """
model: {type: Mlp, in_features: 2, hidden: [8], num_classes: 1, loss: mse}
data:
  train: {type: Csv, path: table.csv, target: y, split: train, batch_size: 16, shuffle: true}
  val: {type: Csv, path: table.csv, target: y, split: val, batch_size: 64}
trainer: {max_epochs: 6}
optim_wrapper: {optimizer: {type: Adam, lr: 0.02}}
evaluator: [{type: R2Score}]
"""
LR = "optim_wrapper.optimizer.lr"


class SweepProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        numbers = random.Random(1)
        rows = [(numbers.gauss(0, 1), numbers.gauss(0, 1)) for _ in range(200)]
        self.write("table.csv", "a,b,y\n" + "".join(f"{a:.4f},{b:.4f},{a - b * b:.4f}\n" for a, b in rows))
        self.write("t.yaml", CONFIG)

    def sweep(self, *arguments, code=0):
        return self.run("sweep", "t.yaml", *arguments, "--json", "result.json", code=code), self.result()


def check_ranking(program):
    text, runs = program.sweep(f"{LR}=0.1,1e-6,0.01", "data.train.batch_size=8,32", "seed=3")
    assert [run["run"] for run in runs][:1] != [] and len(runs) == 6, runs
    values = [run["best"]["value"] for run in runs]
    assert values == sorted(values, reverse=True) and runs[0]["best"]["metric"] == "r2", values
    assert "lr=1e-6" in runs[-1]["run"] and "batch_size=" in runs[0]["run"], runs
    program.run("train", "t.yaml", f"{LR}=0.1", "data.train.batch_size=8", "seed=3", "work_dir=alone")
    alone = [record["r2"] for record in program.records("alone", "val")]
    swept = next(run for run in runs if run["run"] == "lr=0.1,batch_size=8")
    assert swept["best"]["value"] == max(alone), (swept, alone)
    assert "\n1  lr=0.1" in text and {run["state"] for run in runs} == {"finished"}, text
    # What it says shows all of them, though the folder holds more than runs.
    command = text.split("to look at them: duet ")[1].splitlines()[0]
    subprocess.run(f"{program.path} {command} --output runs.html", cwd=program.folder, shell=True, check=True, capture_output=True)
    assert (program.folder / "runs.html").exists()
    command = text.split("to use the best one: duet ")[1].splitlines()[0]
    assert runs[0]["run"] in program.run(*shlex.split(command)), command
    again, same = program.sweep(f"{LR}=0.1,1e-6,0.01", "data.train.batch_size=8,32", "seed=3")
    assert again.count("done before") == 6 and same == runs, again


def check_failure(program):
    text, runs = program.sweep("model.in_features=2,3", "work_dir=runs/f", code=1)
    assert "in_features=3: failed with exit code 2" in text and len(runs) == 2, text
    assert "in_features to 2" in (program.folder / "runs/f/sweep/in_features=3/output.txt").read_text()
    assert runs[0]["run"] == "in_features=2" and "best" not in runs[1], runs
    assert [run["state"] for run in runs] == ["finished", "failed"], runs
    # The report says so too, though the run has no log; that it has no config either is no difference of the others.
    listed = program.json("list", "runs/f/sweep")
    assert {run["name"]: run["state"] for run in listed} == {"in_features=2": "finished", "in_features=3": "failed"}, listed
    # One that diverges before its first result has none to be ranked by, and is said to have failed.
    text, runs = program.sweep(f"{LR}=1e30,0.02", "work_dir=runs/d", code=1)
    assert [(run["run"], run["state"]) for run in runs] == [("lr=0.02", "finished"), ("lr=1e30", "failed")], text


def check_record(program):
    # Of a run that ends in whatever way, once there is something to train.
    def record(*arguments, code):
        return program.json("train", "t.yaml", "work_dir=runs/j", *arguments, code=code)

    done = record(code=0)
    assert (done["state"], done["exit_code"]) == ("finished", 0) and "r2" in done["metrics"]["final"], done
    diverged = record(f"{LR}=1e30", code=5)
    assert (diverged["state"], diverged["exit_code"]) == ("diverged", 5), diverged
    assert "not finite" in diverged["reason"] and "loss" in diverged["metrics"]["final"], diverged
    failed = record("model.in_features=3", code=2)
    assert (failed["state"], failed["exit_code"], failed["steps"]) == ("failed", 2, 0), failed
    assert "in_features to 2" in failed["reason"] and failed["metrics"]["final"] == {}, failed


def check_failed_save(program):
    # The last save comes after the log has said that the run finished: without it the run is not done.
    blocks = program.folder / "runs/b/sweep/seed=1/checkpoints"
    blocks.mkdir(parents=True)
    words = ("seed=1,2", "work_dir=runs/b", "trainer={max_steps: 2}")
    (blocks / "step-2").symlink_to("step-2")
    text, runs = program.sweep(*words, code=1)
    assert {run["run"]: run["state"] for run in runs} == {"seed=1": "failed", "seed=2": "finished"}, text
    (blocks / "step-2").unlink()
    text, runs = program.sweep(*words)
    assert "seed=1: done\n" in text and "seed=2: done before" in text, text
    assert {run["state"] for run in runs} == {"finished"} and (blocks / "step-2/manifest.json").exists(), runs


def check_mistakes(program):
    program.refuses([("several values", 2, f"{LR}=0.1"), ("twice", 2, f"{LR}=1,2", f"{LR}=3"), ("differ", 2, f"{LR}=1,1"),
                     ("known", 2, "optim_wrapper.optimizer.lrr=1,2"), ("interval", 2, "default_hooks.checkpoint.intervall=1,2"),
                     ("a number", 2, f"{LR}=0.1,fast")],
                    "sweep", "t.yaml", "work_dir=runs/m")
    assert not (program.folder / "runs/m").exists()


def check_stop_bad(program):
    # Runs end when they have learnt something. The last one never does: the sweep ends because it is stopped.
    text, runs = program.sweep(
        f"{LR}=0.03,0.02,0.01,1e-9", "work_dir=runs/s", "trainer={max_steps: 1000000000, val_interval: 50}", "--stop-bad",
        "custom_hooks=[{type: EarlyStoppingHook, monitor: r2, rule: greater, patience: 1000000000, stopping_threshold: 0.5}]")
    assert "lr=1e-9: stopped early" in text and text.count(": done") == 3, text
    assert (runs[-1]["run"], runs[-1]["state"]) == ("lr=1e-9", "stopped early"), runs
    assert "median of 3 runs" in (program.folder / "runs/s/sweep/lr=1e-9/stopped_early.txt").read_text()


def check_stop(program):
    # A signal ends the runs with their state saved; the same call goes on with them. Meanwhile no other one may.
    words = [program.path, "sweep", "t.yaml", f"{LR}=0.1,0.2", "work_dir=runs/i", "--jobs", "2",
             "default_hooks.checkpoint={interval: 200, max_keep: 2}", "trainer={max_steps: 40000, val_interval: 200}"]
    process = subprocess.Popen(words, cwd=program.folder, stdout=subprocess.PIPE, text=True)
    folders = [program.folder / "runs/i/sweep" / name for name in ("lr=0.1", "lr=0.2")]
    while not all((folder / "checkpoints" / "latest").exists() for folder in folders):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    other = program.run(*words[1:], code=2)
    assert f"found a sweep (process {process.pid}) that is at work in 'runs/i/sweep'" in other, other
    process.send_signal(signal.SIGTERM)
    text = process.communicate()[0]
    assert process.returncode == 75 and text.count(": stopped") == 2, (process.returncode, text)
    text, runs = program.sweep(*words[3:])
    assert [run["steps"] for run in runs] == [40000, 40000], text
    assert all("resumed from" in (folder / "output.txt").read_text() for folder in folders)


def check_other_config(program):
    # Results of another config are none of this sweep's; values alike as folder names have folders of their own.
    program.sweep("seed=1,2", "work_dir=runs/o", "trainer={max_epochs: 1}")
    text = program.run("sweep", "t.yaml", "seed=1,2", "work_dir=runs/o", "trainer={max_epochs: 2}", code=2)
    assert "another config" in text and "runs/o/sweep/seed=1" in text, text
    for name in ("d/table.csv", "d_table.csv"):
        program.write(name, (program.folder / "table.csv").read_bytes())
    _, runs = program.sweep("data.train.path=d/table.csv,d_table.csv", "work_dir=runs/p", "trainer={max_epochs: 1}",
                            "data.val.fit_on=table.csv", "data.train.fit_on=table.csv")
    assert sorted(run["run"] for run in runs) == ["path=d_table.csv", "path=d_table.csv~2"], runs
    assert "several work_dir" in program.run("sweep", "t.yaml", "work_dir=a,b", code=2)


if __name__ == "__main__":
    run_checks(SweepProgram, check_ranking, check_failure, check_failed_save, check_record, check_mistakes, check_other_config,
               check_stop_bad, check_stop)
