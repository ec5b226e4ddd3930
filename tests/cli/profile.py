"""Checks `duet profile`: phases, ops by layer, memory, both modes.

usage: profile.py PROGRAM
"""

from program import Program, run_checks
from small_data import random_table

CONFIG = """
model: {type: Mlp, in_features: 3, hidden: [64, 32], num_classes: 1, loss: mse}
data:
  train: {type: Csv, path: table.csv, target: y, batch_size: 16, shuffle: true}
trainer: {max_epochs: 2}
optim_wrapper: {optimizer: {type: Adam, lr: 0.02}}
"""


class ProfileProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.write("table.csv", random_table())
        self.write("t.yaml", CONFIG)

    def profile(self, *arguments):
        return self.run("profile", "t.yaml", "--steps", "10", "--json", "result.json", *arguments), self.result()


def check_graph(program):
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


def check_eager(program):
    text, result = program.profile("--mode", "eager")
    assert result["graph_us"] is result["checks_us"] is result["kernels"] is None and "graph mode" not in text, text
    assert result["flops"]["per_step"] == 2 * 16 * (2 * 3 * 64 + 3 * 64 * 32 + 3 * 32) and "MFU" in text, result
    assert not (program.folder / "runs").exists()


if __name__ == "__main__":
    run_checks(ProfileProgram, check_graph, check_eager)
