"""Ctrl-C and other signals while a trainer runs."""

import os
import signal
import subprocess
import sys

import pytest

import duet
import toy


def make(mode, loss, **options):
    return duet.make_trainer(mode, toy.model(), loss, optimizer=duet.AdamW(lr=1e-2), default_hooks=False, **options)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ctrl_c_ends_a_fit_between_two_steps(mode, accumulate):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what nohup starts ignores it
    ends = []
    for interrupted_at in (None, 3, "third read", "last read"):
        calls = []

        def loss(model, batch):
            calls.append(batch)
            if len(calls) == interrupted_at:
                signal.raise_signal(signal.SIGINT)
            return toy.loss(model, batch)

        class Loader(list):
            def __iter__(self):
                for i, batch in enumerate(super().__iter__()):
                    if interrupted_at == {2: "third read", 5: "last read"}.get(i, ""):
                        signal.raise_signal(signal.SIGINT)
                    yield batch

        trainer = make(mode, loss, max_epochs=2, accumulate=accumulate)
        if interrupted_at:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(Loader(toy.batches(6)))
            assert 0 < trainer.progress.step < 12 / accumulate
        trainer.fit(toy.batches(6))
        assert trainer.progress.step == 12 / accumulate
        ends.append(trainer.model.state_dict())
    for end in ends[1:]:
        toy.assert_same_bits(ends[0], end)


def test_a_second_ctrl_c_does_not_wait(mode):
    def loss(model, batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make(mode, loss, max_epochs=1).fit(toy.batches(6))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


WORKERS = """
import os, signal, sys, torch, duet, toy
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, i):
        return toy.batches(1, seed=i)[0]

class Stop(duet.Hook):
    def after_train_iter(self, run):
        if run.progress.step == 5:
            os.killpg(0, signal.SIGTERM)

loader = DataLoader(Data(), batch_size=None, num_workers=2, persistent_workers=bool(int(sys.argv[3])))
hooks = [duet.CheckpointHook(interval=10**6), duet.StopSignalHook(), Stop()]
trainer = duet.make_trainer(sys.argv[1], toy.model(), toy.loss, default_hooks=False, hooks=hooks, work_dir=sys.argv[2], max_epochs=1)
trainer.fit(loader)
print(trainer.outcome, trainer.progress.step)
"""


def test_a_signal_to_all_processes_leaves_workers_to_the_run(mode, tmp_path):
    for persistent in "01":
        command = [sys.executable, "-c", WORKERS, mode, str(tmp_path / persistent), persistent]
        ended = subprocess.run(command, start_new_session=True, capture_output=True, text=True, cwd=os.path.dirname(__file__))
        assert ended.stdout.split() == ["interrupted", "5"], ended.stderr
        assert os.listdir(tmp_path / persistent / "checkpoints")
