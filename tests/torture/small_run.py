"""A run of six steps that saves every second one, for what must not happen to its checkpoints."""

import json
import shutil

import small_data
from torture import FORBIDDEN, found_step, leftovers, steps_in

CONFIG = """
model: {type: Mlp, hidden: [24], dropout: 0.1}
data: {train: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 8}}
trainer: {max_steps: 6}
optim_wrapper: {optimizer: {type: AdamW, lr: 3.0e-3}}
default_hooks: {logger: {interval: 1}, checkpoint: {interval: 2, max_keep: 2, async: false}}
"""


LONGER = ("trainer.max_steps=8",)  # one more save, which cleans up


class SmallRun:
    """Its unbroken end, and copies of it that have come to step 4."""

    def __init__(self, torture):
        self.torture, self.number = torture, 0
        small_data.write_data(torture.folder / "data")
        (torture.folder / "run.yaml").write_text(CONFIG.replace("DATA", str(torture.folder / "data")))
        torture.good(*self.words("unbroken", "none"))
        self.weights = {6: self.weights_of("unbroken", 6)}
        torture.good(*self.words("unbroken"), *LONGER)
        self.expected = self.hash_of("unbroken")
        torture.good(*self.words("begun", "none"), "trainer.max_steps=4")
        self.weights.update({step: self.weights_of("begun", step) for step in (2, 4)})

    def words(self, name, resume="auto"):
        return ("train", "run.yaml", f"work_dir={self.torture.folder / name}", "--resume", resume, "--json", f"{name}.json")

    def hash_of(self, name):
        return self.hash_at(self.torture.folder / f"{name}.json")

    @staticmethod
    def hash_at(path):
        return json.loads(path.read_text())["weights_hash"]

    def checkpoints(self, name):
        return self.torture.folder / name / "checkpoints"

    def weights_of(self, name, step):
        return (self.checkpoints(name) / f"step-{step}" / "model.safetensors").read_bytes()

    def copy(self):
        self.number += 1
        name = f"copy{self.number}"
        shutil.copytree(self.torture.folder / "begun", self.torture.folder / name, symlinks=True)
        return name

    def drop(self, name):
        shutil.rmtree(self.torture.folder / name)

    def check_message(self, done):
        """What it says of what went wrong is meant for its user."""
        self.torture.require(not FORBIDDEN.search(done.text), "shows what no user should see", done)
        self.torture.require(done.code == 0 or "error: " in done.text, "no error message", done)

    def check_intact(self, name, done):
        """The newest checkpoint loads bit for bit, and the run goes on to the unbroken end of eight steps; True if step 6 was saved."""
        torture, folder = self.torture, self.checkpoints(name)
        found = torture.run("inspect", folder)
        torture.require(found.code == 0, "no checkpoint can be read", f"{done}{found}")
        newest = max(steps_in(folder))
        torture.require(found_step(found) == str(newest) and newest >= 4, f"expected step 4 or 6, found {newest}", f"{done}{found}")
        torture.require(self.weights_of(name, newest) == self.weights[newest], f"step-{newest} has other weights", done)
        again = torture.run(*self.words(name), *LONGER)
        torture.require(again.code == 0, "no resume afterwards", f"{done}{again}")
        torture.require(self.hash_of(name) == self.expected, "the resumed run ended with other weights", f"{done}{again}")
        left = leftovers(folder)
        torture.require(not left, f"left behind: {left}", f"{done}{again}")
        self.drop(name)
        return newest == 6
