"""The processes that train one run, which are killed and stopped, and how it must end."""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

IMAGES = "{type: FashionMnist, split: test, limit: %d, batch_size: %d, shuffle: %s, num_workers: %d%s}"
CONFIG = """
model: {type: SmallCnn, channels: [8, 16], dropout: 0.2}
data:
  train: %s
  val: %s
trainer: {%s, accumulate: 2}
optim_wrapper:
  optimizer: {%s}
  clip_grad: {max_norm: 1.0}
param_scheduler: [{type: Linear, start_factor: 0.1, end: 10}, {type: Cosine, begin: 10}]
default_hooks: {logger: {interval: 1}, checkpoint: {interval: 3, max_keep: 2, save_best: accuracy}}
evaluator: [{type: Accuracy}]
"""
STOPPED = 75


def fail(message):
    sys.exit(f"FAILED: {message}")


class Chain:
    """The processes that train one run."""

    popen = staticmethod(subprocess.Popen)

    def __init__(self, program, folder, config):
        self.program, self.config = program, config
        self.work_dir = pathlib.Path(folder)
        self.checkpoints = self.work_dir / "checkpoints"
        self.log = ""

    def arguments(self, mode, resume):
        return [self.program, "train", str(self.config), f"work_dir={self.work_dir}", "--mode", mode, "--resume",
                str(resume), "--json", f"{self.work_dir}.json"]

    def start(self, mode, resume, **more):
        self.log = ""
        self.newest = self.newest_checkpoint()
        self.process = self.popen(self.arguments(mode, resume), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)
        os.set_blocking(self.process.stderr.fileno(), False)

    def read(self, seconds):
        """What the process says within `seconds`; False at its end."""
        if not select.select([self.process.stderr], [], [], seconds)[0]:
            return True
        text = os.read(self.process.stderr.fileno(), 1 << 16).decode()
        self.log += text
        return bool(text)

    def newest_checkpoint(self):
        names = os.listdir(self.checkpoints) if self.checkpoints.is_dir() else []
        found = [re.fullmatch(r"step-(\d+)(\.old\..*)?", name) for name in names]
        return max((int(match.group(1)) for match in found if match), default=0)

    def expect_resumed(self):
        """It went on from the newest checkpoint and did not begin again."""
        begun = re.search(r"training in mode \w+ from step (\d+)/", self.log)
        if begun and int(begun.group(1)) != self.newest:
            fail(f"expected to go on from step {self.newest}:\n{self.log}")

    def reached(self):
        steps = re.findall(r"info step (\d+)/", self.log)
        return int(steps[-1]) if steps else -1

    def wait_for_step(self, step):
        """False if the process ended before."""
        while self.reached() < step:
            if not self.read(60):
                return False
        return True

    def signal(self, number):
        """Sends the signal; the exit code once the process has ended."""
        self.process.send_signal(number)
        while self.read(60):
            pass
        self.process.stderr.close()
        return self.process.wait(60)

    def temporary(self):
        names = os.listdir(self.checkpoints) if self.checkpoints.is_dir() else []
        return {name for name in names if ".tmp." in name}

    def said(self, words):
        """Exit code and what the program writes to stderr."""
        process = self.popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        text = process.stderr.read()
        process.stderr.close()
        return process.wait(), text.decode()

    def finish(self, mode, resume):
        """Runs to the end; the hash of the final weights and the last loss, which --json tells of a finished run too."""
        self.newest = self.newest_checkpoint()
        code, self.log = self.said(self.arguments(mode, resume))
        if code != 0:
            fail(f"--resume {resume} in mode {mode} returned {code}:\n{self.log}")
        with open(f"{self.work_dir}.json", encoding="utf-8") as file:
            report = json.load(file)
        return report["weights_hash"], report["final_loss"]


def expect_end(found, expected, what):
    if found != expected or not isinstance(expected[1], float):
        fail(f"{what} ended with weights and loss {found}, expected {expected}")


def expect_clean(chain):
    """Nothing half-written is left, and what is left verifies. One older checkpoint may be: of a run that died between its
    last save and the deletion after it, as only a save deletes whole ones."""
    names = sorted(os.listdir(chain.checkpoints))
    steps = [name for name in names if re.fullmatch(r"step-\d+", name)]
    if set(names) - set(steps) - {"latest", "best"} or not 2 <= len(steps) <= 4:
        fail(f"{chain.checkpoints} holds {names}, expected two checkpoints (the best, an older one), 'latest' and 'best'")
    for name in steps:
        code, text = chain.said([chain.program, "inspect", str(chain.checkpoints / name)])
        if code != 0:
            fail(f"{name} does not verify: {text}")
