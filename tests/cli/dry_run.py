"""Checks `duet train --dry-run` and `duet compare` with every hook: all parts take part, and no file stays behind.

usage: dry_run.py PROGRAM
"""

import re

import small_data
from program import Program, run_checks

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
        (folder / "tmp").mkdir()
        small_data.write_data(folder / "data")
        self.write("base.yaml", small_data.BASE.replace("default_hooks: {checkpoint: {interval: 2}}\n", ""))
        self.write("all.yaml", "_base_: base.yaml\n" + HOOKS)

    def run(self, *arguments, code=0):
        before = set(self.folder.rglob("*"))
        text = super().run(*arguments, code=code)
        left = set(self.folder.rglob("*")) - before
        assert {path.name for path in left} <= {"result.json"}, f"{arguments} left {left}"
        return text


def check_dry_run(program):
    for mode, arguments, steps in (("eager", ["--dry-run", "3"], 3), ("graph", ["--dry-run"], 1), ("graph", ["--dry-run", "50"], 4)):
        text = program.run("train", "all.yaml", "--mode", mode, *arguments, "--json", "result.json")  # an epoch has four steps
        assert "dry run: all parts work\n" in text, text
        assert program.result()["steps"] == steps
        for part in ("val  step", "test  step", "best checkpoint so far", "trace written to"):
            assert part in text, (part, text)
    # The number may stand before the config. A fixed step of the run's own counts, and schedules are those of the whole run.
    for arguments in (["--dry-run", "2", "all.yaml"], ["all.yaml", "--dry-run", "trainer={max_steps: 8, accumulate: 2}"],
                      ["all.yaml", "--dry-run", "trainer={max_epochs: 30}",
                       "param_scheduler=[{type: Linear, end: 50}, {type: Cosine, begin: 50}]"]):
        assert "all parts work" in program.run("train", *arguments)


def check_small_parts(program):
    """Shares count on the whole data, as in a real run; pictures and predictions are tried too."""
    # 64 samples are 2 batches of val and test: a half is one.
    assert "all parts work" in program.run("train", "all.yaml", "--dry-run", "trainer={max_steps: 8, limit_val_batches: 0.5}")
    text = program.run("train", "all.yaml", "--dry-run", "trainer={max_steps: 8, limit_test_batches: 0.4}", code=2)
    assert "of 2 batches, which is not one" in text, text
    # The second batch of the interval would never come: every one is drawn.
    predict = "data.predict={type: FashionMnist, images: data/images, labels: data/labels, batch_size: 32}"
    text = program.run("train", "base.yaml", "--dry-run", predict,
                       "default_hooks={visualization: {draw: true, interval: 50, image: nowhere}}")
    assert "warning [SamplePainter] found no 'nowhere'" in text and "predictions of 1 batches" in text, text


def check_compare(program):
    """Every hook and validation take part in both modes, and files go nowhere."""
    text = program.run("compare", "all.yaml", "trainer={max_steps: 20, val_interval: 3}", "--steps", "7", "--json", "result.json")
    result = program.result()
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


if __name__ == "__main__":
    run_checks(CleanProgram, check_dry_run, check_small_parts, check_compare)
