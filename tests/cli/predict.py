"""Checks `duet predict` and `duet eval` on checkpoints: which data, which weights, which files.

usage: predict.py PROGRAM
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import bad_input_cases as cases

RUN = ["trainer={max_updates: 8, val_interval: 4}", "default_hooks.checkpoint={interval: 4, save_best: loss}"]
AVERAGE = "custom_hooks=[{type: EMAHook, momentum: 0.5}]"


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = os.path.abspath(path), folder

    def run(self, *arguments, code=0):
        done = subprocess.run([self.path, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def json(self, *arguments):
        self.run(*arguments, "--json", "result.json")
        return json.loads((self.folder / "result.json").read_text())


def tensors_of(path):
    """Name: (dtype, shape, bytes) of a safetensors file."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], content[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def check_data(program):
    for override, data, samples in (("seed=0", "data.val", 64), ("data.test={type: FashionMnist, images: data/images, labels: "
                                    "data/labels, batch_size: 7, limit: 30}", "data.test", 30),
                                    ("data.predict={type: FashionMnist, images: data/images, labels: data/labels, limit: 9}",
                                     "data.predict", 9)):
        result = program.json("predict", "base.yaml", "work_dir=run", override)
        assert result["data"] == data and result["samples"] == samples, result
        dtype, shape, _ = tensors_of(program.folder / result["folder"] / "predictions.safetensors")["prediction"]
        assert dtype == "F32" and shape == [samples, 10], (dtype, shape)
    result = program.json("predict", "base.yaml", "work_dir=run", "trainer.limit_predict_batches=1")
    assert result["samples"] == 32, result
    program.run("predict", "base.yaml", "work_dir=run", "data.val=null", code=2)


def check_folder(program):
    result = program.json("predict", "base.yaml", "work_dir=run")
    assert result["folder"] == "run/predictions", result
    result = program.json("predict", "base.yaml", "work_dir=run", "--output", "elsewhere/deep")
    assert result["folder"] == "elsewhere/deep" and (program.folder / "elsewhere/deep/predictions.safetensors").exists()
    own = "custom_hooks=[{type: PredictionWriterHook, folder: own, format: jsonl}]"
    result = program.json("predict", "base.yaml", "work_dir=run", own)
    rows = [json.loads(line) for line in (program.folder / "own/predictions.jsonl").read_text().splitlines()]
    assert result["folder"] == "own" and len(rows) == 64, result
    assert not (program.folder / "own/predictions.safetensors").exists(), "a second writer"
    # The command line wins over the config's folder.
    result = program.json("predict", "base.yaml", "work_dir=run", own, "--output", "third")
    assert (program.folder / "third/predictions.jsonl").exists(), result


def check_checkpoints(program):
    best = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "best")
    default = program.json("predict", "base.yaml", "work_dir=run")
    assert best["checkpoint"] == default["checkpoint"], (best, default)
    latest = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "latest")
    assert latest["checkpoint"].endswith("step-8") and latest["update"] == 8, latest
    named = program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "run/checkpoints/step-4", "--output", "four")
    assert named["update"] == 4, named
    four = tensors_of(program.folder / "four/predictions.safetensors")
    program.json("predict", "base.yaml", "work_dir=run", "--checkpoint", "latest", "--output", "eight")
    assert four != tensors_of(program.folder / "eight/predictions.safetensors"), "the checkpoint made no difference"
    for mode in ("eager", "graph"):
        program.run("predict", "base.yaml", "work_dir=run", "--mode", mode, "--output", mode)
    assert tensors_of(program.folder / "eager/predictions.safetensors") == tensors_of(program.folder / "graph/predictions.safetensors")
    assert "train first" in program.run("predict", "base.yaml", "work_dir=nowhere", code=4)


def check_average(program):
    """The average predicts and is evaluated in place of the weights, if the config asks for it."""
    program.run("train", "base.yaml", "work_dir=ema", *RUN, AVERAGE)
    values = {}
    for name, hooks in (("plain", "custom_hooks=null"), ("average", AVERAGE)):
        program.run("predict", "base.yaml", "work_dir=ema", hooks, "--checkpoint", "latest", "--output", name)
        values[name] = tensors_of(program.folder / name / "predictions.safetensors")
        values[name + " loss"] = program.json("eval", "base.yaml", "work_dir=ema", hooks, "--checkpoint", "latest")["metrics"]["loss"]
    assert values["plain"] != values["average"] and values["plain loss"] != values["average loss"], "no average"
    # As validation in training saw it.
    lines = [json.loads(line) for line in (program.folder / "ema/log.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "val"][-1]
    assert last["step"] == 8 and abs(last["loss"] - values["average loss"]) < 1e-12, (last, values["average loss"])
    assert all(line["kind"] != "test" for line in lines), "an evaluation wrote into the log of the training"
    warned = program.run("eval", "base.yaml", "work_dir=run", AVERAGE)
    assert "holds no state of hook 'ema'" in warned, warned


def check_pictures(program):
    draw = "default_hooks.visualization={draw: true, interval: 1, max_samples: 2}"
    program.run("predict", "base.yaml", "work_dir=run", draw)
    program.run("eval", "base.yaml", "work_dir=run", draw)
    names = sorted(path.name for path in (program.folder / "run/vis_data").iterdir())
    for mode in ("predict", "test"):
        assert sum(name.startswith(mode) for name in names) == 4, names  # two of each of two batches
    for path in (program.folder / "run/vis_data").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG"), path


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases.write_data(folder / "data")
        (folder / "base.yaml").write_text(cases.BASE, encoding="utf-8")
        program = Program(sys.argv[1], folder)
        program.run("train", "base.yaml", "work_dir=run", *RUN)
        check_data(program)
        check_folder(program)
        check_checkpoints(program)
        check_average(program)
        check_pictures(program)
    print("predict: all checks passed")


if __name__ == "__main__":
    main()
