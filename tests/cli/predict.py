"""Checks `duet predict` and `duet eval` on checkpoints: which data, which weights, which files.

usage: predict.py PROGRAM
"""

import json
import struct

import small_data
from program import Program, run_checks

RUN = ["trainer={max_steps: 8, val_interval: 4}", "default_hooks.checkpoint={interval: 4, save_best: loss}"]
AVERAGE = "custom_hooks=[{type: EMAHook, momentum: 0.5}]"


class PredictProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        small_data.write_data(folder / "data")
        self.write("base.yaml", small_data.BASE)
        self.run("train", "base.yaml", "work_dir=run", *RUN)

    def predicted(self, folder):
        """Name: (dtype, shape, bytes) of what it wrote as safetensors."""
        content = (self.folder / folder / "predictions.safetensors").read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + size])
        header.pop("__metadata__", None)
        return {name: (entry["dtype"], entry["shape"], content[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
                for name, entry in header.items()}

    def names(self, folder):
        return sorted(path.name for path in (self.folder / folder).iterdir())


def check_data(program):
    for override, data, samples in (("seed=0", "data.val", 64), ("data.test={type: FashionMnist, images: data/images, labels: "
                                    "data/labels, batch_size: 7, limit: 30}", "data.test", 30),
                                    ("data.predict={type: FashionMnist, images: data/images, labels: data/labels, limit: 9}",
                                     "data.predict", 9)):
        result = program.json("predict", "base.yaml", "work_dir=run", override)
        assert result["data"] == data and result["samples"] == samples, result
        dtype, shape, _ = program.predicted(result["folder"])["prediction"]
        assert dtype == "F32" and shape == [samples, 10], (dtype, shape)
    result = program.json("predict", "base.yaml", "work_dir=run", "trainer.limit_predict_batches=1")
    assert result["samples"] == 32, result
    program.run("predict", "base.yaml", "work_dir=run", "data.val=null", code=2)


def check_order(program):
    """Predictions of all samples in their order, however evaluations read the data; those count what they read."""
    other = ["data.val.shuffle=true", "data.val.drop_last=true"]
    plain, turned = (["predict", "base.yaml", "work_dir=run", "data.val.batch_size=24", *further] for further in ([], other))
    program.run(*plain, "--output", "plain")
    program.run(*turned, "--output", "turned")
    assert program.predicted("plain") == program.predicted("turned")
    assert " on 48 samples of " in program.run("eval", "base.yaml", "work_dir=run", "data.val.batch_size=24", *other)
    assert " on 32 samples of " in program.run("eval", "base.yaml", "work_dir=run", "trainer.limit_test_batches=1")


def check_folder(program):
    result = program.json("predict", "base.yaml", "work_dir=run")
    assert result["folder"] == "run/predictions", result
    result = program.json("predict", "base.yaml", "work_dir=run", "--output", "elsewhere/deep")
    assert result["folder"] == "elsewhere/deep" and (program.folder / "elsewhere/deep/predictions.safetensors").exists()
    own = "custom_hooks=[{type: PredictionWriterHook, folder: own, format: jsonl}]"
    result = program.json("predict", "base.yaml", "work_dir=run", own)
    rows = [json.loads(line) for line in (program.folder / "own/predictions.jsonl").read_text().splitlines()]
    assert result["folder"] == "own" and len(rows) == 64, result
    assert all(list(row) == ["index", "class", "score", "probability"] and 0.1 <= row["probability"] <= 1 for row in rows), rows[0]
    assert not (program.folder / "own/predictions.safetensors").exists(), "a second writer"
    program.run("predict", "base.yaml", "work_dir=run", own, "--output", "third")
    assert (program.folder / "third/predictions.jsonl").exists(), "the command line wins over the config's folder"


def check_checkpoints(program):
    best = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "best")
    default = program.json("predict", "base.yaml", "work_dir=run")
    assert best["checkpoint"] == default["checkpoint"], (best, default)
    latest = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "latest")
    assert latest["checkpoint"].endswith("step-8") and latest["step"] == 8, latest
    named = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "run/checkpoints/step-4", "--output", "four")
    assert named["step"] == 4, named
    four = program.predicted("four")
    program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "latest", "--output", "eight")
    assert four != program.predicted("eight"), "the checkpoint made no difference"
    pointer = program.folder / "run/checkpoints/best"
    names_it = pointer.read_text(encoding="utf-8")
    for broken in ("garbage\n", "step-99\n"):
        pointer.write_text(broken, encoding="utf-8")
        program.refuses([("there is no best checkpoint", 4)], "eval", "base.yaml", "work_dir=run")
    pointer.write_text(names_it, encoding="utf-8")
    for mode in ("eager", "graph"):
        program.run("predict", "base.yaml", "work_dir=run", "--mode", mode, "--output", mode)
    assert program.predicted("eager") == program.predicted("graph")
    assert "train first" in program.run("predict", "base.yaml", "work_dir=nowhere", code=4)
    assert not (program.folder / "nowhere").exists(), "a refused predict left a folder"


def check_average(program):
    """The average predicts and is evaluated in place of the weights, if the config asks for it."""
    program.run("train", "base.yaml", "work_dir=ema", *RUN, AVERAGE)
    values = {}
    for name, hooks in (("plain", "custom_hooks=null"), ("average", AVERAGE)):
        program.run("predict", "base.yaml", "work_dir=ema", hooks, "--checkpoint", "latest", "--output", name)
        values[name] = program.predicted(name)
        values[name + " loss"] = program.json("eval", "base.yaml", "work_dir=ema", hooks, "--checkpoint", "latest")["metrics"]["loss"]
    assert values["plain"] != values["average"] and values["plain loss"] != values["average loss"], "no average"
    # As validation in training saw it.
    last = program.records("ema", "val")[-1]
    assert last["step"] == 8 and abs(last["loss"] - values["average loss"]) < 1e-12, (last, values["average loss"])
    assert not program.records("ema", "test"), "an evaluation wrote into the log of the training"
    for command in ("eval", "predict"):
        text = program.run(command, "base.yaml", "work_dir=ema", "custom_hooks=null")
        assert text.count("holds averages of the weights, 'ema'") == 1 and "type: EMAHook" in text, text
        for work_dir, hooks in (("ema", AVERAGE), ("run", "custom_hooks=null")):
            assert "holds averages" not in program.run(command, "base.yaml", f"work_dir={work_dir}", hooks)
    warned = program.run("eval", "base.yaml", "work_dir=run", AVERAGE)
    assert "holds no state of hook 'ema'" in warned, warned


def check_pictures(program):
    draw = "default_hooks.visualization={draw: true, interval: 1, max_samples: 2}"
    program.run("predict", "base.yaml", "work_dir=run", draw)
    program.run("eval", "base.yaml", "work_dir=run", draw)
    names = program.names("run/vis_data")
    for mode in ("predict", "test"):
        assert sum(name.startswith(mode) for name in names) == 4, names  # two of each of two batches
    for path in (program.folder / "run/vis_data").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG"), path


def check_paths(program):
    """A work_dir stands for its newest good checkpoint, in every command."""
    for path in ("run/", "run/checkpoints/step-8"):
        result = program.json("eval", "base.yaml", "work_dir=elsewhere", "--checkpoint", path)
        assert result["step"] == 8 and result["checkpoint"].endswith("run/checkpoints/step-8"), (path, result)
    assert program.json("inspect", "run")["path"] == "run/checkpoints/step-8"
    text = program.run("export", "run", "run.safetensors")
    assert "the newest good checkpoint in 'run' is 'run/checkpoints/step-8'" in text, text
    text = program.run("train", "base.yaml", "work_dir=from_run", "trainer.max_steps=9", "--resume", "run")
    assert "resumed from 'run/checkpoints/step-8' after step 8" in text, text
    text = program.run("train", "base.yaml", "work_dir=from_run", "trainer.max_steps=9", "--resume", "from_run")
    assert "resumed from 'from_run/checkpoints/step-9'" in text and not list(program.folder.glob("from_run/checkpoints.*")), text
    (program.folder / "from_run/checkpoints").rename(program.folder / "from_run/checkpoints.1")
    assert "from_run/checkpoints.1'" in program.run("eval", "base.yaml", "work_dir=from_run", code=4)


def check_weights_files(program):
    """Files of weights are evaluated as the checkpoint that they came from, if they are all of the model's."""
    whole = program.json("eval", "base.yaml", "work_dir=run", "--checkpoint", "latest")
    for name in ("run.safetensors", "run.pt"):
        program.run("export", "run/checkpoints/step-8", name)
        text = program.run("eval", "base.yaml", "--checkpoint", name, "--json", "result.json")
        result = program.result()
        assert result == {**whole, "checkpoint": name, "step": None}, (result, whole)
        assert f"loaded weights from '{name}'" in text, text
        assert program.json("predict", "base.yaml", "--checkpoint", name, "--output", "of_file")["step"] is None
    text = program.run("eval", "base.yaml", "--checkpoint", "run.pt", "model.channels=[4, 4]", code=4)
    assert "does not fit the model exactly" in text and "missing there: conv2.weight" in text, text
    assert "holds no state of hook 'ema'" in program.run("eval", "base.yaml", "--checkpoint", "run.pt", AVERAGE)


def check_output(program):
    """A place that cannot be written shows before the checkpoint is read; files of an earlier pass do not stay."""
    text = program.run("predict", "base.yaml", "work_dir=run", "--output", "base.yaml/x", code=2)
    assert "cannot write 'base.yaml/x'" in text and "predictions of" not in text, text
    for writer, names in (("{format: both}", ["predictions.jsonl", "predictions.safetensors"]),
                          ("{per_batch: true}", ["batch-000000.safetensors", "batch-000001.safetensors"]),
                          ("{format: jsonl}", ["predictions.jsonl"]), ("{format: safetensors}", ["predictions.safetensors"])):
        writer = "custom_hooks=[{type: PredictionWriterHook, " + writer[1:] + "]"
        program.run("predict", "base.yaml", "work_dir=run", writer, "--output", "again")
        assert program.names("again") == names, (writer, names)
    # Only files of an earlier predict go, and only once this one is through.
    mine = program.folder / "again/batch-train.safetensors"
    mine.write_bytes(b"mine")
    program.run("predict", "base.yaml", "work_dir=run", "data.predict={type: Text, path: base.yaml, context: 8}", "--output", "again",
                code=3)
    assert program.names("again") == [mine.name, "predictions.safetensors"]
    program.run("predict", "base.yaml", "work_dir=run", "--output", "again")
    assert mine.read_bytes() == b"mine"


def check_failed_run(program):
    """A run that fails before it has saved leaves the checkpoints of the one before it in place."""
    program.run("train", "base.yaml", "work_dir=failed", *RUN)
    before, config = program.names("failed/checkpoints"), (program.folder / "failed/config.yaml").read_text()
    for action in ("raise", "stop"):
        guard = "default_hooks.nan_guard={interval: 1, action: %s}" % action
        text = program.run("train", "base.yaml", "work_dir=failed", "trainer={max_steps: 8}", guard, "optim_wrapper.optimizer.lr=1e30",
                           code=5)
        assert "are back in" in text, text
        assert program.names("failed/checkpoints") == before
        assert (program.folder / "failed/config.yaml").read_text() == config
        assert not (program.folder / "failed/checkpoints.1").exists()


if __name__ == "__main__":
    run_checks(PredictProgram, check_data, check_order, check_folder, check_checkpoints, check_average, check_paths, check_weights_files,
               check_output, check_pictures, check_failed_run)
