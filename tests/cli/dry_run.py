"""Checks `duet train --dry-run` and `duet compare` with every hook: all parts take part, and no file stays behind.

usage: dry_run.py PROGRAM
"""

import json
import os
import pathlib
import re
import sys
import tempfile

import bad_input_cases as cases
from program import Program

# All hooks, with files wherever one may be named.
HOOKS = """
data: {test: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 32}}
default_hooks:
  visualization: {draw: true, interval: 1, max_samples: 1}
  logger: {interval: 1, file: own.jsonl, sinks: [terminal, jsonl, {type: tensorboard, folder: tb}, {type: wandb, folder: wb}]}
  checkpoint: {interval: 2, save_best: auto}
custom_hooks:
  - {type: EMAHook, begin_iter: 2}
  - {type: EmptyCacheHook}
  - {type: SyncBuffersHook}
  - {type: NaNGuardHook, interval: 1}
  - {type: EarlyStoppingHook, monitor: loss, patience: 50}
  - {type: ProfilerHook, wait: 0, warmup: 0, active: 1, folder: trace}
  - {type: PredictionWriterHook, folder: written}
test_evaluator: [{type: Accuracy}, {type: F1, num_classes: 10}]
"""


class CleanProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder, TMPDIR=str(folder / "tmp"))
        self.scratch = folder / "tmp"
        self.scratch.mkdir()

    def run(self, *arguments, code=0):
        before = {path for path in self.folder.rglob("*")}
        text = super().run(*arguments, code=code)
        left = {path for path in self.folder.rglob("*")} - before
        assert {path.name for path in left} <= {"result.json"}, f"{arguments} left {left}"
        return text


def check_dry_run(program):
    for mode in ("eager", "graph"):
        for arguments, steps in ((["--dry-run"], 1), (["--dry-run", "3"], 3), (["--dry-run=2"], 2), (["trainer.fast_dev_run=2"], 2),
                                   (["--dry-run", "50"], 4)):  # an epoch has four
            text = program.run("train", "all.yaml", "--mode", mode, *arguments)
            assert text.endswith("dry run: all parts work\n") or "dry run: all parts work\n" in text, text
            assert f"step {steps}/" in text and f"step {steps + 1}/" not in text, text
            for part in ("val  step", "test  step", "best checkpoint so far", "trace written to"):
                assert part in text, (part, text)
    program.run("train", "all.yaml", "--dry-run", "3", "--json", "result.json")
    assert json.loads((program.folder / "result.json").read_text())["steps"] == 3
    # The number may stand before the config.
    assert "all parts work" in program.run("train", "--dry-run", "2", "all.yaml")
    assert "all parts work" in program.run("train", "--dry-run", "all.yaml", "trainer.max_steps=1")
    # Schedules are those of the whole run.
    assert "all parts work" in program.run("train", "all.yaml", "--dry-run", "trainer={max_epochs: 30}",
                                           "param_scheduler=[{type: Linear, end: 50}, {type: Cosine, begin: 50}]")
    # A fixed step of the run's own counts.
    assert "all parts work" in program.run("train", "all.yaml", "--dry-run", "trainer={max_steps: 8, accumulate: 2}")


def check_small_parts(program):
    """Shares count on the whole data, as in a real run; pictures and predictions are tried too."""
    # 64 samples are 2 batches of val and test: a half is one.
    assert "all parts work" in program.run("train", "all.yaml", "--dry-run", "trainer={max_steps: 8, limit_val_batches: 0.5}")
    for limit in ("limit_val_batches: 0.4", "limit_test_batches: 0.4", "limit_train_batches: 0.2"):
        text = program.run("train", "all.yaml", "--dry-run", "trainer={max_steps: 8, %s}" % limit, code=2)
        assert "of 2 batches, which is not one" in text or "of 4 batches, which is not one" in text, text
    # The second batch of the interval would never come: every one is drawn.
    text = program.run("train", "base.yaml", "--dry-run", "default_hooks={visualization: {draw: true, interval: 50, image: nowhere}}")
    assert "warning [SamplePainter] found no 'nowhere'" in text and "get no picture" in text, text
    predict = "data.predict={type: FashionMnist, images: data/images, labels: data/labels, batch_size: 32}"
    text = program.run("train", "base.yaml", "--dry-run", predict)
    assert "predictions of 1 batches" in text, text
    text = program.run("train", "base.yaml", "--dry-run", predict, "trainer={max_steps: 8, limit_predict_batches: 0.4}", code=2)
    assert "limit_predict_batches" in text, text


def check_mistakes(program):
    for arguments, code, part in ((["trainer.fast_dev_run=no"], 2, "fast_dev_run is 'no'"), (["--dry-run=0"], 2, "at least 1"),
                                  (["--dry-run=-3"], 2, "fast_dev_run is -3"), (["--dry-run", "--resume", "auto"], 2, "excludes"),
                                  (["--dry-run", "data.test.labels=data/label_10"], 3, "label 10"),
                                  (["--dry-run", "model.image_size=30"], 2, "set model"),
                                  (["--dry-run", "test_evaluator=[{type: F1, num_classes: 3}]"], 2, "set num_classes"),
                                  (["--dry-run", "custom_hooks=[{type: EarlyStoppingHook, monitor: los}]"], 2, "'los'")):
        text = program.run("train", "all.yaml", *arguments, code=code)
        assert part in text and "all parts work" not in text, (arguments, text)


def check_compare(program):
    """Every hook and validation take part in both modes, and files go nowhere."""
    text = program.run("compare", "all.yaml", "trainer={max_steps: 20, val_interval: 3}", "--steps", "7", "--json", "result.json")
    result = json.loads((program.folder / "result.json").read_text())
    assert result["bit_identical"] and result["first_difference"] is None, result
    assert result["eager"]["weights_hash"] == result["graph"]["weights_hash"], result
    assert result["eager"]["steps"] == result["graph"]["steps"] == 7, result
    assert result["graph"]["fallbacks"] == [], result["graph"]["fallbacks"]
    for half in (result["eager"], result["graph"]):
        assert len(half["losses"]) == 7 and half["us_per_step"]["median"] > 0, half
    # The modes take turns three times.
    assert [half for half in re.findall("compare: (eager|graph)", text)] == ["eager", "graph"] * 3, text
    assert text.count("val  step 3/20") == text.count("val  step 6/20") == 6, text
    assert text.count("best checkpoint so far") >= 6 and text.count("trace written") == 6, text
    assert len(result["speedup_of_turns"]) == 3 and min(result["speedup_of_turns"]) > 0, result["speedup_of_turns"]
    assert result["speedup_in_cpu_time"] > 0 and result["eager"]["cpu_us_per_step"]["median"] > 0, result
    machine = result["machine"]
    assert machine["cores"] >= 1 and machine["others_running"] >= 0, machine
    assert machine["busy"] == ("the machine is busy" in text), (machine, text)
    assert "x in 3 turns)" in text and "step, CPU time, median" in text, text


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases.write_data(folder / "data")
        base = cases.BASE.replace("default_hooks: {checkpoint: {interval: 2}}\n", "")
        (folder / "base.yaml").write_text(base, encoding="utf-8")
        (folder / "all.yaml").write_text("_base_: base.yaml\n" + HOOKS, encoding="utf-8")
        program = CleanProgram(sys.argv[1], folder)
        check_dry_run(program)
        check_small_parts(program)
        check_mistakes(program)
        check_compare(program)
    print("dry run: all checks passed")


if __name__ == "__main__":
    main()
