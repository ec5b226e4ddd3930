"""Checks `duet report`, `duet list` and `duet diff` on tiny real runs, long and broken logs, hostile names and no runs at all.

usage: report.py PROGRAM
"""

import base64
import json
import os
import pathlib
import random
import re
import subprocess

import file_bytes
import run_folders
from program import Program, run_checks

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
FASHION = ["trainer.max_epochs=null", "trainer.max_steps=8", "trainer.val_interval=4", "default_hooks.logger.interval=2",
           "data.train.num_workers=0", "data.val={type: FashionMnist, split: test, batch_size: 500}",
           "evaluator=[{type: Accuracy}, {type: ConfusionMatrix, num_classes: 10}]", "default_hooks.checkpoint.interval=8"]
SCENES = ["trainer.max_steps=2", "trainer.val_interval=2", "default_hooks.logger.interval=1", "data.train.num_workers=0",
          "data.train.length=8", "data.train.batch_size=2", "data.val.length=4", "data.val.batch_size=2",
          "default_hooks.visualization.interval=1", "custom_hooks=[]", "model.channels=[8, 8, 8, 8]"]


class ReportProgram(Program):
    def train(self, example, work_dir, *overrides, code=0):
        return self.run("train", EXAMPLES / example, f"work_dir={work_dir}", *overrides, code=code)

    def made(self, name, lines, **config):
        """The folder of a run that nobody has made."""
        return run_folders.write_run(self.folder / name, lines, **config)

    def page(self, *runs):
        """What the page of the runs shows: its data."""
        self.run("report", *runs, "--output", "page.html")
        text = (self.folder / "page.html").read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", text), "the page loads something"
        return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def curve(run, kind, name):
    return next(item for item in run["curves"] if (item["kind"], item["name"]) == (kind, name))


def check_fashion(program):
    program.train("fashion_mnist.yaml", "runs/eager", *FASHION)
    program.train("fashion_mnist.yaml", "runs/graph", *FASHION, "--mode", "graph", "optim_wrapper.optimizer.lr=0.001")
    program.run("report", "runs/eager")
    assert (program.folder / "runs/eager/report.html").stat().st_size > 20_000
    data = program.page("runs/eager", "runs/graph/")
    eager, graph = data["runs"]
    assert (eager["name"], eager["mode"], eager["state"], eager["step"]) == ("eager", "eager", "finished", 8), eager
    assert graph["mode"] == "graph" and graph["planned_steps"] == 8, graph
    assert curve(eager, "train", "loss")["x"] == [2, 4, 6, 8] and len(curve(eager, "val", "accuracy")["y"]) == 2
    assert eager["best"]["name"] == "accuracy" and 0 < eager["best"]["best"] <= 1, eager["best"]
    assert any(text.startswith("target \\ predicted") for _, text in eager["texts"]), eager["texts"]
    assert ["optim_wrapper.optimizer.lr", "0.001", "command line"] in graph["config"], graph["config"]
    environment = dict(eager["environment"])
    assert {"runtime_info", "versions.libtorch", "machine.cores"} <= set(environment), environment
    assert eager["graph"] == [], eager["graph"]
    ((name, coverage),) = graph["graph"]
    assert name == "graph.json" and coverage["replays"] + coverage["eager_steps"] == 8, coverage
    assert any(signature["state"] == "captured" for signature in coverage["signatures"]), coverage


def check_segmentation(program):
    program.train("segmentation.yaml", "runs/scenes", *SCENES)
    (run,) = program.page("runs/scenes")["runs"]
    pictures = run["pictures"]
    assert pictures["found"] >= 4 and {picture["pass"] for picture in pictures["shown"]} == {"val"}, pictures["found"]
    assert all(picture["png"].startswith("iVBORw0KGgo") for picture in pictures["shown"])
    assert {picture["legend"] for picture in pictures["shown"]} == {"Left to right: image, target, prediction."}, pictures
    assert {picture["shrink"] for picture in pictures["shown"]} == {1} and pictures["unreadable"] == 0, pictures
    assert run["best"]["name"] == "mIoU", run["best"]


def check_list(program):
    text = program.run("list", "runs", "--json", "result.json")
    rows = program.result()
    assert [row["name"] for row in rows] == ["scenes", "graph", "eager"], rows
    assert all(row["state"] == "finished" and row["last_loss"] > 0 for row in rows), rows
    assert rows[2]["best"]["metric"] == "accuracy" and rows[2]["steps"] == 8, rows
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["name", "mode", "state"] and len(lines) == 4, text
    assert "8/8" in lines[3] and "accuracy" in lines[3], text
    assert program.run("list") == text
    assert "no runs" in program.run("list", EXAMPLES)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([program.path, "list", "runs"], cwd=program.folder, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1 and b"standard output cannot be written" in done.stderr, done


def check_diff(program):
    text = program.run("diff", "runs/eager", "runs/graph", "--json", "result.json")
    diff = program.result()
    rows = {row["name"]: row for row in diff["config"]}
    assert set(rows) == {"work_dir", "mode", "optim_wrapper.optimizer.lr"}, rows
    rate = rows["optim_wrapper.optimizer.lr"]
    assert rate["right"] == "0.001" and rate["right_origin"] == "command line", rate
    assert "fashion_mnist.yaml:" in rate["left_origin"], rate
    names = {row["name"] for row in diff["results"]}
    assert {"accuracy, best", "val/accuracy, last", "train/loss, last", "state", "steps"} <= names, names
    assert "optim_wrapper.optimizer.lr" in text and "(command line)" in text, text


def size_of_png(text):
    header = base64.b64decode(text[:64])
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def check_large_pictures(program):
    """Photographs, as noise is: none of them fits into the page, all of the newest are shown smaller, none is lost silently."""
    run = program.made("photos", run_folders.log_lines(20))
    (run / "vis_data").mkdir()
    draw = random.Random(1)
    for sample in range(3):
        for step in (10, 20):
            (run / "vis_data" / f"val_{sample}_{step}.png").write_bytes(file_bytes.picture(900, 1200, draw.randbytes(900 * 1200 * 3)))
    (run / "vis_data" / "val_3_20.png").write_bytes(b"no picture")
    (data,) = program.page(run)["runs"]
    pictures = data["pictures"]
    assert (program.folder / "page.html").stat().st_size < 2_000_000
    newest = [picture for picture in pictures["shown"] if picture["step"] == 20]
    assert [picture["sample"] for picture in newest] == ["0", "1", "2"], pictures
    for picture in newest:
        width, height = size_of_png(picture["png"])
        assert width >= 256 and (width, height) == (900 // picture["shrink"], 1200 // picture["shrink"]), (width, height)
    assert (pictures["found"], pictures["unreadable"]) == (7, 1), pictures
    # Nothing but a file that is no picture: the page says so.
    for file in (run / "vis_data").glob("val_[012]_*.png"):
        file.unlink()
    (data,) = program.page(run)["runs"]
    assert data["pictures"] == {"found": 1, "unreadable": 1, "shown": []}, data["pictures"]


def check_diverged(program):
    lines = [line for line in run_folders.log_lines(20) if '"stop"' not in line]
    lines += ['{"kind": "train", "step": 21, "loss": "nan"}',
              '{"kind": "stop", "step": 21, "reason": "the loss is beyond hope", "outcome": "diverged"}']
    run = program.made("diverged/one", lines)
    (data,) = program.page(run)["runs"]
    assert (data["state"], data["reason"], data["last_loss"]) == ("failed", "the loss is beyond hope", "NaN"), data["state"]
    assert re.search(r"one +eager +failed .* NaN ", program.run("list", "diverged"))
    other = program.made("diverged/other", run_folders.log_lines(20))
    text = program.run("diff", run, other)
    assert re.search(r"state +failed +finished\n +ended by +the loss is beyond hope +done\n", text), text


def check_broken_logs(program):
    lines = list(run_folders.log_lines(40))
    broken = program.made("ends/killed", lines[:30])
    with open(broken / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"kind":"train","loss":0.1')
    (run,) = program.page(broken)["runs"]
    assert run["unreadable_lines"] == 1 and run["state"] == "broken off", run["state"]
    assert curve(run, "train", "loss")["x"][-1] == run["step"] > 10, run["step"]

    # Resumed from step 20: the steps after it count once, as they were run the second time.
    resumed = [line for line in lines if '"stop"' not in line] + list(run_folders.log_lines(40, seed=3, begin=20))
    (run,) = program.page(program.made("ends/resumed", resumed))["runs"]
    assert curve(run, "train", "loss")["x"] == list(range(1, 41)) and run["earlier_runs"] == 0, run
    # Begun again in the same file: the first run is left out, and said to be.
    (run,) = program.page(program.made("ends/again", [*lines, *run_folders.log_lines(7)]))["runs"]
    assert curve(run, "train", "loss")["x"] == list(range(1, 8)) and run["earlier_runs"] == 1, run

    empty = program.made("ends/empty", [])
    (run,) = program.page(empty)["runs"]
    assert run["lines"] == 0 and run["state"] == "no log" and run["config"], run
    (empty / "log.jsonl").unlink()
    (empty / "config.yaml").write_text("# The config of this run as it was resolved\na: [\n")
    (run,) = program.page(empty)["runs"]
    assert "config.yaml:" in run["config_problem"], run
    (empty / "config.yaml").write_text("# The config of this run as it was resolved\n")
    (run,) = program.page(empty)["runs"]
    assert (run["config"], run["config_problem"]) == ([], run["config_problem"]) and "is empty" in run["config_problem"], run
    binary = program.folder / "ends/binary"
    binary.mkdir()
    (binary / "log.jsonl").write_bytes(bytes(range(256)) * 50 + b'\n[1]\n{"kind":7,"step":"x"}\n{"kind":"train","step":1e300,"loss":[]}\n')
    program.page(binary)
    assert len(program.json("list", "ends")) == 5


def check_long_log(program):
    run = program.made("long", run_folders.log_lines(100_000))
    (data,) = program.page(run)["runs"]
    size = (program.folder / "page.html").stat().st_size
    assert size < 2_000_000, size
    loss = curve(data, "train", "loss")
    assert loss["logged"] == 100_000 and len(loss["x"]) <= 2000 and len(loss["low"]) == len(loss["x"]), len(loss["x"])
    assert (loss["x"][0], loss["x"][-1]) == (1, 100_000), loss["x"][:3]
    assert all(low <= mean <= high for low, mean, high in zip(loss["low"], loss["y"], loss["high"]))


def check_hostile_names(program):
    name = '<script>alert(1)<%script>"&\'\n\x1b[31m'
    lines = [*run_folders.log_lines(5), '{"kind":"text","step":5,"</script><b>":"</script><!-- \u2028"}']
    program.made(pathlib.Path("hostile") / name, lines)
    (run,) = program.page(pathlib.Path("hostile") / name)["runs"]
    assert run["name"] == name, run["name"]
    page = (program.folder / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and page.count("</script>") == 2, "a name stands in the page as markup"
    text = program.run("list", "hostile")
    assert "\x1b" not in text and len(text.splitlines()) == 2, repr(text)


def check_no_runs(program):
    os.mkfifo(program.folder / "pipe.html")
    (program.folder / "link.html").symlink_to("/dev/null")
    for arguments, part in [(["report", "nowhere"], "in 'nowhere'"), (["report", "runs"], "duet list FOLDER"),
                            (["report", "runs/eager", "runs/eager/"], "twice"),
                            (["report", "runs/eager", "--output", "none/page.html"], "No such file or directory"),
                            (["report", "runs/eager", "--output", "pipe.html"], "a pipe or a device"),
                            (["report", "runs/eager", "--output", "link.html"], "a pipe or a device"),
                            (["diff", "runs/eager", "nowhere"], "in 'nowhere'"), (["list", "nowhere"], "no folder 'nowhere'")]:
        text = program.run(*arguments, code=2)
        assert part in text and len(text.strip().splitlines()) == 1, (arguments, text)
    assert (program.folder / "pipe.html").is_fifo() and (program.folder / "link.html").is_symlink(), "a page took their place"
    program.run("diff", "runs/eager", code=2)
    program.run("report", code=2)


if __name__ == "__main__":
    run_checks(ReportProgram, check_fashion, check_segmentation, check_list, check_diff, check_diverged, check_large_pictures,
               check_broken_logs, check_long_log, check_hostile_names, check_no_runs)
