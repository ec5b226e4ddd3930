"""Runs that go from Python to the duet program and back. DUET_PROGRAM names it."""

import os
import subprocess

import pytest
import torch
from torch import nn

import duet
import toy

PROGRAM = os.environ.get("DUET_PROGRAM", "")
pytestmark = pytest.mark.skipif(not os.path.isfile(PROGRAM), reason="DUET_PROGRAM names no program")

CONFIG = """
work_dir: {folder}/{name}
mode: graph
model: {{type: torchscript, path: {folder}/model.pt, inputs: [x]}}
data:
  train: {{type: Safetensors, path: {folder}/data.safetensors, batch_size: 8, shuffle: false}}
trainer: {{max_steps: {steps}}}
optim_wrapper:
  optimizer: {{type: AdamW, lr: 1.0e-2}}
"""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.output = nn.Linear(16, 3)

    def forward(self, x):
        return self.output(torch.tanh(self.norm(self.hidden(x))))


@pytest.fixture
def folder(tmp_path):
    torch.jit.script(Net()).save(str(tmp_path / "model.pt"))
    data = toy.batches(1, size=64)[0]
    duet.write_weights(str(tmp_path / "data.safetensors"), {"x": data["x"], "target": data["y"]})
    return tmp_path


def loader(folder):
    data = duet.read_weights(str(folder / "data.safetensors"))
    rows = [{"x": x, "target": y} for x, y in zip(data["x"], data["target"])]
    return torch.utils.data.DataLoader(rows, batch_size=8)


def python(folder, steps, resume=None):
    """Trains with the package; returns the checkpoint and the weights."""
    model = Net()  # PyTorch's interpreter of scripts would fuse ops after two runs, and round otherwise
    model.load_state_dict(torch.jit.load(folder / "model.pt").state_dict())
    trainer = duet.GraphTrainer(
        model,
        lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["target"]),
        optimizer=duet.AdamW(lr=1e-2),
        max_steps=steps,
        default_hooks=False,
    )
    if resume:
        trainer.load(str(resume))
    trainer.fit(loader(folder))
    return trainer.save(str(folder / f"python-{steps}")), trainer.model.state_dict()


def program(folder, name, steps, *resume):
    """Trains with the program; returns the checkpoint and the weights."""
    config = folder / f"{name}.yaml"
    config.write_text(CONFIG.format(folder=folder, name=name, steps=steps))
    done = subprocess.run([PROGRAM, "train", str(config), *map(str, resume)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checkpoints = folder / name / "checkpoints"
    return checkpoints / f"step-{steps}", duet.read_weights(str(checkpoints))


def same(a, b):
    toy.assert_same_bits(dict(sorted(a.items())), dict(sorted(b.items())))


def test_a_run_of_python_goes_on_in_the_program_and_back(folder):
    whole_python = python(folder, 20)[1]
    whole_program = program(folder, "whole", 20)[1]
    same(whole_python, whole_program)
    checkpoint, _ = python(folder, 11)
    same(program(folder, "on", 20, "--resume", checkpoint)[1], whole_python)
    checkpoint, weights = program(folder, "first", 11)
    same(python(folder, 20, checkpoint)[1], whole_python)
    trainer = duet.EagerTrainer(Net(), toy.loss, default_hooks=False)
    trainer.load_weights(str(checkpoint))
    same(trainer.model.state_dict(), weights)
