#!/usr/bin/env python3
"""A run that is killed again and again ends with the weights and the loss of a run that nobody touched.

usage: kill_resume.py PROGRAM [--seed N] [--kills N]

Each chain is killed by SIGKILL at random moments, every other time while a checkpoint is being written, and resumed
with --resume auto in the other mode. Further runs are stopped by SIGTERM and resumed by path. Where a run is through
before its moment has come, as on a fast machine, another run is killed or stopped earlier.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
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
VALIDATION = IMAGES % (200, 64, "false", 0, "")
# 5 epochs of 22 steps, the last with a smaller batch.
EPOCHS = CONFIG % (IMAGES % (700, 16, "true", 1, ""), VALIDATION, "max_epochs: 5", "type: AdamW, lr: 3.0e-3")
# No epochs; the order is drawn anew while it is read ahead.
INFINITE = CONFIG % (IMAGES % (300, 16, "true", 2, ", sampler: infinite"), VALIDATION,
                     "max_steps: 60, val_interval: 7",
                     "type: SGD, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 1.0e-3")
LAST_STEP = {"epochs": 110, "infinite": 60}
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
        self.left_behind = self.temporary()
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

    def saving(self):
        return bool(self.temporary() - self.left_behind)

    def kill_in_save(self, seconds):
        """Kills the process while a checkpoint is written, if one is begun in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None and not self.saving():
            pass
        return self.signal(signal.SIGKILL)

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


def make_chain(program, folder, config, name):
    return Chain(program, f"{folder}_{name}", config)


class Kills:
    """What came of the kills of a test."""

    def __init__(self):
        self.made = self.in_saves = 0


def kill_once(chain, rng, mode, step, in_save):
    """False if the run was through before."""
    chain.start(mode, "auto")
    # Before the first step: while the process starts, loads and verifies.
    delay = rng.uniform(0, 0.5) if step < 1 else rng.uniform(0, 0.012)
    chain.wait_for_step(step if step >= 1 else -1)
    if step >= 1 and in_save:
        code = chain.kill_in_save(2)
    else:
        time.sleep(delay)
        code = chain.signal(signal.SIGKILL)
    chain.expect_resumed()
    if code == 0:
        return False
    if code != -signal.SIGKILL:
        fail(f"expected a killed process, found exit code {code}:\n{chain.log}")
    return True


def kill_and_resume(chain, rng, first_mode, count, last, expected, kills):
    """Kills one run `count` times, or until it is through, and then checks its end."""
    modes = ("eager", "graph") if first_mode == "eager" else ("graph", "eager")
    moments = sorted(rng.randint(-8, last - 6) for _ in range(count))
    for number, step in enumerate(moments):
        if not kill_once(chain, rng, modes[number % 2], step, in_save=number % 2 == 0):
            break
        in_save = chain.saving()
        kills.made += 1
        kills.in_saves += in_save
        print(f"  kill {number + 1} in mode {modes[number % 2]} after step {chain.reached()}"
              f"{' inside a save' if in_save else ''}", flush=True)
    expect_end(chain.finish(modes[len(moments) % 2], "auto"), expected, "the run killed again and again")
    chain.expect_resumed()
    expect_clean(chain)


def kill_often(new_chain, rng, first_mode, count, last, expected, kills):
    """Kills `count` times. A run that is through before its last kill is followed by another one."""
    made_before = kills.made
    for attempt in range(10):
        left = count - (kills.made - made_before)
        if left == 0:
            return
        # The later ones were too late for a fast machine: those of the next run come earlier.
        kill_and_resume(new_chain(f"killed_{attempt}"), rng, first_mode, left, max(6, last // 2**attempt), expected, kills)
    fail(f"10 runs were through before they had been killed {count} times")


def terminate(new_chain, step, mode):
    """A run that SIGTERM has stopped after a step, or earlier where it would be through before."""
    for attempt in range(6):
        chain = new_chain(f"stopped_{attempt}")
        earliest = max(1, step // 2**attempt)
        chain.start(mode, "none")
        chain.wait_for_step(earliest)
        code = chain.signal(signal.SIGTERM)
        if code == 0 and "asked to stop" not in chain.log:
            continue
        if code != STOPPED:
            fail(f"expected exit code {STOPPED} after SIGTERM, found {code}:\n{chain.log}")
        if chain.newest_checkpoint() < earliest:
            fail(f"SIGTERM after step {earliest} left step-{chain.newest_checkpoint()} as the newest checkpoint")
        return chain
    return fail("every run was through before SIGTERM came")


def terminate_and_resume(new_chain, step, mode, expected):
    """SIGTERM, then on by path in the other mode, then a resume with nothing left to do."""
    other = "graph" if mode == "eager" else "eager"
    chain = terminate(new_chain, step, mode)
    newest = chain.newest_checkpoint()
    expect_end(chain.finish(other, chain.checkpoints / f"step-{newest}"), expected, "the run stopped by SIGTERM")

    before = {path: path.stat().st_mtime_ns for path in chain.checkpoints.rglob("*")}
    expect_end(chain.finish(mode, "auto"), expected, "the finished run")
    if chain.reached() != -1 or before != {path: path.stat().st_mtime_ns for path in chain.checkpoints.rglob("*")}:
        fail(f"resuming a finished run did something:\n{chain.log}")
    return chain


def start_afresh(chain, expected):
    """Without --resume, in the work_dir of a finished run: the newest checkpoint is that of the new run, though the other
    was longer."""
    for number in range(1, 6):
        chain.start("eager", "none")
        chain.wait_for_step(7)
        code = chain.signal(signal.SIGKILL)
        if f"checkpoints.{number}" not in chain.log:
            fail(f"expected a line that tells where the earlier checkpoints are:\n{chain.log}")
        if code != 0:  # else it was through before
            break
    expect_end(chain.finish("eager", "auto"), expected, "the run that started afresh")
    if "resumed from" not in chain.log or f"after step {LAST_STEP['epochs']}" in chain.log:
        fail(f"expected to go on from the new run's checkpoint:\n{chain.log}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"--seed {options.seed}", flush=True)
    rng = random.Random(options.seed)

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        kills = Kills()
        for name, text in (("epochs", EPOCHS), ("infinite", INFINITE)):
            config = root / f"{name}.yaml"
            config.write_text(text, encoding="utf-8")
            expected = Chain(options.program, root / f"{name}_unbroken", config).finish("eager", "none")
            count = options.kills if name == "epochs" else max(1, options.kills // 4)
            for mode in ("eager", "graph"):
                print(f"{name}, first mode {mode}: {count} kills", flush=True)
                new_chain = functools.partial(make_chain, options.program, root / f"{name}_{mode}", config)
                kill_often(new_chain, rng, mode, count, LAST_STEP[name], expected, kills)
                stopped = terminate_and_resume(new_chain, rng.randint(1, LAST_STEP[name] - 10), mode, expected)
            if name == "epochs":
                start_afresh(stopped, expected)
            print(f"{name}: every run ended with weights and loss {expected}", flush=True)
        if options.kills >= 10 and kills.in_saves == 0:
            fail("no kill fell inside a save")
        print(f"{kills.made} kills, {kills.in_saves} of them inside a save")


if __name__ == "__main__":
    main()
