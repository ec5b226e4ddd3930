"""Checks `duet find` (the curve, its picture and suggestions, and batch sizes within memory) and `duet profile` (phases, ops by
layer, memory), in both modes.

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

    def profile(self, *arguments):
        return self.run("profile", "t.yaml", "optim_wrapper.optimizer={type: Adam, lr: 0.02}", "--steps", "10", "--json", "result.json",
                        *arguments), self.result()


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


def check_profile_of_graph_mode(program):
    # Of seven batches an epoch has three steps: of 3, 3 and 1 of them, and 22 in the ten that are timed.
    for accumulate, batches in (1, 1), (3, 2.2):
        text, result = program.profile("--mode", "graph", f"trainer.accumulate={accumulate}")
        phases = ("forward", "backward", "optimizer", "hooks")
        assert all(result[f"{phase}_us"] > 0 and phase in text for phase in phases), (result, text)
        assert abs(sum(result[f"{phase}_us"] for phase in phases) / result["eager_us"] - 1) < 1e-6, result
        assert sum(op["us"] for op in result["ops"]) < result["eager_us"], result
        assert result["eager_us"] > 0 and result["graph_us"] > 0 and "captured" in text, text
        # Its first replays are all checked.
        assert 0 < result["checks_us"] < result["graph_us"] and "\nchecks " in text, text
        kernels = result["kernels"]
        assert 0 < kernels["least_us"] <= kernels["us"] < result["graph_us"] and "\nkernels " in text and "floor of the kernels" in text, text
        # Three products for each layer but the first, which needs no gradient of its inputs.
        products = 16 * (2 * 3 * 64 + 3 * 64 * 32 + 3 * 32)
        assert accumulate > 1 or kernels["flops"] == 2 * products, kernels
        flops = result["flops"]
        assert accumulate > 1 or flops["per_step"] == kernels["flops"], result
        assert flops["peak_per_second"] > 1e6 and "MFU" in text and flops["dtype"] == "Float" and "Float numbers, as measured" in text, text
        # Adam alone reads and writes weights, gradients and two moments.
        assert kernels["bytes"] > 4 * 4 * (64 * 4 + 64 * 33), kernels
        calls = {(op["op"], op["module"]): op["calls"] for op in result["ops"]}
        for layer in ("hidden1", "hidden2", "head"):
            assert calls[("aten::addmm", layer)] == batches, calls
            assert any("AddmmBackward" in op for op, module in calls if module == layer), calls
        assert {module for op, module in calls if op == "duet::fused_adam_"} == {""}, calls
        weights = 4 * (3 * 64 + 64 + 64 * 32 + 32 + 32 + 1)
        memory = result["memory"]
        assert memory["weights"] == memory["gradients"] == weights, memory
        assert 2 * weights <= memory["optimizer"] <= 2 * weights + 1000, memory
        # The inputs of the two ReLUs' successors, at least.
        assert memory["activations"] >= 4 * 16 * (64 + 32), memory


def check_profile_of_eager_mode(program):
    text, result = program.profile("--mode", "eager")
    assert result["graph_us"] is result["checks_us"] is result["kernels"] is None and "graph mode" not in text, text
    assert result["flops"]["per_step"] == 2 * 16 * (2 * 3 * 64 + 3 * 64 * 32 + 3 * 32) and "MFU" in text, result
    assert not (program.folder / "runs").exists()


if __name__ == "__main__":
    run_checks(FindProgram, check_lr, check_batch_size, check_out_of_memory, check_mistakes, check_profile_of_graph_mode,
               check_profile_of_eager_mode)
