"""Several ranks under torchrun, with duet's own connection and with torch.distributed's."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import duet
import toy
from test_metrics import Area, evaluated

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import duet, test_distributed, toy
from test_metrics import Area

torch.set_num_threads(1)
duet.set_log_level("error")
if sys.argv[2] == "torch":
    torch.distributed.init_process_group("gloo")
ranks = duet.init_distributed(device="cpu")
assert ranks.world_size == 2
for mode in ("eager", "graph"):
    module = test_distributed.linear()
    trainer = duet.make_trainer(mode, module, toy.loss, optimizer=duet.SGD(lr=0.1), default_hooks=False)
    for batch in toy.batches(10):
        trainer.step({name: tensor[ranks.rank * 6 : ranks.rank * 6 + 6] for name, tensor in batch.items()})
    trainer.finish()
    torch.save(module.state_dict(), f"{sys.argv[3]}/{mode}-{ranks.rank}")
    assert mode == "eager" or toy.captured(trainer.report()) == ["step"], trainer.report()
torch.manual_seed(1)
trainer = duet.EagerTrainer(
    torch.nn.Linear(8, 1), lambda prediction, batch: prediction.square().mean(), forward=toy.forward,
    metrics=[duet.Auroc(target="y"), Area()], default_hooks=False)
torch.save(trainer.validate(toy.batches(5, classes=2)[ranks.rank :: 2]), f"{sys.argv[3]}/values-{ranks.rank}")
ranks.barrier()
del trainer
"""


def linear():
    torch.manual_seed(4)
    return torch.nn.Linear(8, 3)


@pytest.mark.parametrize("kind", ["duet", "torch"])
def test_two_ranks_train_one_model_and_make_one_evaluation(kind, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script,
         pathlib.Path(__file__).parent, kind, tmp_path],
        capture_output=True, text=True, timeout=300, env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    states = {name: torch.load(tmp_path / name) for name in ("eager-0", "eager-1", "graph-0", "graph-1")}
    for name in ("eager-1", "graph-0", "graph-1"):
        toy.assert_same_bits(states["eager-0"], states[name])
    module = linear()
    optimizer = toy.sgd(module)
    for batch in toy.batches(10):
        toy.loop_step(module, toy.loss, optimizer, batch)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(states["eager-0"][name], tensor)
    alone, _, _ = evaluated("eager", [duet.Auroc(target="y"), Area()])
    for rank in range(2):
        found = torch.load(tmp_path / f"values-{rank}")
        assert (found["auroc"], found["area"]) == pytest.approx((alone["auroc"], alone["area"]), rel=1e-9)


def test_one_process_is_a_world_of_one():
    ranks = duet.init_distributed()
    assert (ranks.rank, ranks.world_size) == (0, 1)
    ranks.barrier()
