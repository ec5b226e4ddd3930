"""Several ranks under torchrun, with duet's own connection and with torch.distributed's."""

import itertools
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
if sys.argv[2] == "torch":
    sys.exit()
torch.manual_seed(1)
trainer = duet.EagerTrainer(
    torch.nn.Linear(8, 1), lambda prediction, batch: prediction.square().mean(), forward=toy.forward,
    metrics=[duet.Auroc(target="y"), Area()], default_hooks=False)
torch.save(trainer.validate(toy.batches(5, classes=2)[ranks.rank :: 2]), f"{sys.argv[3]}/values-{ranks.rank}")
for mode in ("eager", "graph"):
    trainer = duet.make_trainer(mode, duet.lightning(test_distributed.Figures()), default_hooks=False)
    of_ranks = [toy.batches(5)[ranks.rank :: 2], toy.batches(5) if ranks.rank == 1 else []]
    torch.save([trainer.validate(data) for data in of_ranks], f"{sys.argv[3]}/figures-{mode}-{ranks.rank}")
seen = []
trainer = test_distributed.numbers_seen(seen, max_steps=3)
trainer.fit(test_distributed.numbers(ranks, batch_size=4))
trainer.save(f"{sys.argv[3]}/checkpoints")
torch.save(seen, f"{sys.argv[3]}/seen-{ranks.rank}")
ranks.barrier()
del trainer
loader = test_distributed.numbers(ranks, batch_size=4)
loader.sampler.seed = ranks.rank
try:
    test_distributed.numbers_seen([], max_steps=3).fit(loader)
except duet.ConfigError as error:
    assert "(seed: 1; on rank 0 seed: 0)" in str(error), error
else:
    raise AssertionError("each rank took its part of another order")
"""


class Figures(toy.Net):
    """A LightningModule, as far as duet asks for one."""

    automatic_optimization = True

    def __init__(self):
        torch.manual_seed(4)
        super().__init__()
        import torchmetrics

        self.sure = torchmetrics.MeanMetric()
        self.area = torchmetrics.classification.MulticlassAUROC(3)

    def setup(self, stage):
        assert self.trainer.is_global_zero == (duet.current_ranks().rank == 0)

    def training_step(self, batch, batch_idx):
        return toy.loss(self, batch)

    def validation_step(self, batch, batch_idx):
        prediction = self(batch["x"]).softmax(1)
        self.sure.update(prediction.amax(1))
        self.area.update(prediction, batch["y"])
        self.log("sure", self.sure)
        self.log("area", self.area)
        self.log("largest", batch["x"].max(), reduce_fx="max")

    def on_validation_epoch_end(self):
        self.log("mean_rank", self.trainer.global_rank, sync_dist=True)
        self.log("rank", self.trainer.global_rank)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2, fused=True)


def numbers(ranks, batch_size):
    data = torch.utils.data.TensorDataset(torch.arange(48.0))
    sampler = torch.utils.data.distributed.DistributedSampler(data, ranks.world_size, ranks.rank)
    return torch.utils.data.DataLoader(data, batch_size, sampler=sampler)


def numbers_seen(seen, **options):
    def loss(model, batch):
        seen.extend(batch[0].tolist())
        return model(batch[0][:, None]).square().mean()

    torch.manual_seed(4)
    return duet.EagerTrainer(torch.nn.Linear(1, 1), loss, optimizer=duet.SGD(lr=1e-4), default_hooks=False, **options)


@pytest.mark.parametrize("collective", ["all_gather", "gather", "all_reduce", "broadcast", "functional"])
def test_a_loss_that_talks_to_other_processes_runs_op_by_op(collective):
    def exchanged(tensor):
        copies = [torch.zeros_like(tensor)]
        if collective == "functional":
            from torch.distributed import _functional_collectives

            return _functional_collectives.all_reduce(tensor, "sum", torch.distributed.group.WORLD)
        if collective == "all_gather":
            torch.distributed.all_gather(copies, tensor)
        elif collective == "gather":
            torch.distributed.gather(tensor, copies, dst=0)
        else:
            copies = [tensor.clone()]
            getattr(torch.distributed, collective)(copies[0], *([0] if collective == "broadcast" else []))
        return copies[0]

    def loss(model, batch):
        return toy.loss(model, batch) * exchanged(model(batch["x"]).detach()).square().mean()

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        reports = toy.same_as_loop(toy.over(toy.batches(6)), loss).report()
    finally:
        torch.distributed.destroy_process_group()
    assert "exchanges data with other processes" in reports[0]["reason"]


def linear():
    torch.manual_seed(4)
    return torch.nn.Linear(8, 3)


@pytest.mark.parametrize("kind", ["duet", pytest.param("torch", marks=pytest.mark.slow)])
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
    if kind == "torch":
        return
    alone, _, _ = evaluated("eager", [duet.Auroc(target="y"), Area()])
    for rank in range(2):
        found = torch.load(tmp_path / f"values-{rank}")
        assert (found["auroc"], found["area"]) == pytest.approx((alone["auroc"], alone["area"]), rel=1e-9)


    for mode, rank in itertools.product(("eager", "graph"), range(2)):
        for found in torch.load(tmp_path / f"figures-{mode}-{rank}"):
            assert found == pytest.approx({**figures(), "mean_rank": 0.5, "rank": 0.0}, rel=1e-6), (mode, rank)
    # On with another number of ranks: each number is seen once.
    seen = torch.load(tmp_path / "seen-0") + torch.load(tmp_path / "seen-1")
    trainer = numbers_seen(seen, max_epochs=1)
    trainer.load(str(tmp_path / "checkpoints"))
    trainer.fit(numbers(duet.current_ranks(), batch_size=8))
    assert sorted(seen) == list(range(48))


def figures():
    """Of Figures over all batches."""
    module = Figures().eval()
    with torch.no_grad():
        for batch in toy.batches(5):
            prediction = module(batch["x"]).softmax(1)
            module.sure.update(prediction.amax(1))
            module.area.update(prediction, batch["y"])
    largest = max(batch["x"].max().item() for batch in toy.batches(5))
    return {"sure": module.sure.compute().item(), "area": module.area.compute().item(), "largest": largest}


def test_one_process_is_a_world_of_one():
    ranks = duet.init_distributed()
    assert (ranks.rank, ranks.world_size) == (0, 1)
    ranks.barrier()
