"""find_lr() from Python, and hooks at the points after a save and a line of the log."""

import torch

import duet
import toy


def make(mode, **options):
    return duet.make_trainer(mode, toy.model(), toy.loss, optimizer=duet.SGD(lr=0.05), default_hooks=False, **options)


def test_leaves_no_trace(mode):
    loader = torch.utils.data.DataLoader(
        [{"x": b["x"][0], "y": b["y"][0]} for b in toy.batches(40)], batch_size=8, shuffle=True
    )
    ends = []
    for finds in (False, True):
        trainer = make(mode, max_epochs=3)
        torch.manual_seed(3)
        if finds:
            assert len(trainer.find_lr(loader, num_training=30).lr) == 30
        trainer.fit(loader)
        ends.append(trainer.state_dict())
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        other = ends[1][name]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name


def test_hooks_hear_of_saves_and_lines(mode, tmp_path):
    class Listener(duet.Hook):
        def __init__(self):
            self.saved, self.lines = [], []

        def after_save_checkpoint(self, run):
            self.saved.append(run.saved_checkpoint)

        def on_log(self, run):
            kind, values = run.log_line
            self.lines.append((kind, values["step"], "loss" in values))

    listener = Listener()
    trainer = duet.make_trainer(
        mode, toy.model(), toy.loss, hooks=[listener, duet.LoggerHook(interval=2)], default_hooks=False, max_epochs=1
    )
    trainer.fit(toy.batches(4))
    assert listener.saved == [] and listener.lines == [("train", 2, True), ("train", 4, True)]
    path = trainer.save(str(tmp_path))
    assert listener.saved == [path]
