"""Checks `duet find`: the curve, its picture and suggestions, and batch sizes within memory, in both modes.

usage: find.py PROGRAM [STAND_IN]    STAND_IN: of the CUDA runtime, a library for LD_PRELOAD, with 4 GiB of memory
"""

import struct
import sys

from program import Program, run_checks
from small_data import random_table

CONFIG = """
model: {type: Mlp, in_features: 3, hidden: [64, 32], num_classes: 1, loss: mse}
data:
  train: {type: Csv, path: table.csv, target: y, batch_size: 16, shuffle: true}
trainer: {max_epochs: 2}
optim_wrapper: {optimizer: {type: SGD, lr: 0.02}}
param_scheduler: [{type: Linear, end: 5}]
"""


class FindProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.write("table.csv", random_table())
        self.write("t.yaml", CONFIG)

    def find(self, what, *arguments):
        return self.run("find", what, "t.yaml", "--json", "result.json", *arguments), self.result()


def check_lr(program):
    curves = []
    for mode in ("eager", "graph"):
        text, result = program.find("lr", "--mode", mode, "--output", f"{mode}.png", "--max-lr", "1000")
        lr, loss = result["lr"], result["loss"]
        assert len(lr) == len(loss) < 100 and lr[0] == 1e-8 and loss[-1] > 4 * min(loss), result
        assert result["steepest"] in lr and result["valley"] in lr and "steepest" in text, text
        picture = (program.folder / f"{mode}.png").read_bytes()
        assert struct.unpack(">II", picture[16:24]) == (720, 420), picture[:24]
        curves.append((result, picture))
    assert curves[0] == curves[1]
    program.run("find", "lr", "t.yaml", "--steps", "30")
    assert (program.folder / "lr_find.png").exists() and not (program.folder / "runs").exists()


def check_batch_size(program):
    for mode in ("eager", "graph"):
        text, result = program.find("batch_size", "--mode", mode)
        assert result["mode"] == mode and result["batch_size"] <= 100, result
        sizes = [trial["batch_size"] for trial in result["trials"] if trial["fits"]]
        assert max(sizes) == result["batch_size"] and sizes[:3] == [2, 4, 8], result
        assert all(0 < trial["bytes"] <= result["bytes"] for trial in result["trials"] if trial["fits"]), result
        assert str(result["batch_size"]) in text, text
    assert not (program.folder / "runs").exists()


def check_out_of_memory(program):
    if len(sys.argv) < 3:
        return
    program.environment["LD_PRELOAD"] = sys.argv[2]
    for mode in ("eager", "graph"):
        _, result = program.find("batch_size", "--mode", mode, "device=cuda", "model.hidden=[8388608]",
                                 "--memory-share", "1")
        fits = {trial["batch_size"]: trial["fits"] for trial in result["trials"]}
        assert 2 < result["batch_size"] < 100 and not all(fits.values()), result
        assert any(trial["bytes"] == 0 for trial in result["trials"]), result  # memory ran out
        assert all(size <= result["batch_size"] for size, fit in fits.items() if fit), result
    del program.environment["LD_PRELOAD"]


def check_mistakes(program):
    program.refuses(
        (
            ("found min_lr 2", 2, "lr", "t.yaml", "--min-lr", "2"),
            ("set a lower --min-lr", 5, "lr", "t.yaml", "--min-lr", "1e30", "--max-lr", "1e31"),
            ("no batch fits", 2, "batch_size", "t.yaml", "--memory-share", "1e-9"),
            ("--memory-share", 2, "batch_size", "t.yaml", "--memory-share", "2"),
            ("momentum", 2, "momentum", "t.yaml"),
        ),
        "find",
    )


if __name__ == "__main__":
    run_checks(FindProgram, check_lr, check_batch_size, check_out_of_memory, check_mistakes)
