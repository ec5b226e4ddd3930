#!/usr/bin/env python3
"""Kills a captured run on the GPU at random moments, in which its kernels run, and expects what an unbroken run gives.

usage: kill.py --folder DIR [--kills N] [--small] [--seed N] -- PROGRAM

Its steps are long, so that nearly all of the time is inside of one. Each time the run goes on from its newest checkpoint; the
end has the unbroken run's weights, unless two unbroken runs differ (kernels with atomics), which is noted.
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "cli"))
import chain  # noqa: E402

CONFIG = """
device: cuda
model: {{type: Gpt, n_layer: {layers}, n_head: 4, n_embd: {width}, context: 128}}
data: {{train: {{type: Text, path: {text}, context: 128, batch_size: {batch}, shuffle: true}}}}
trainer: {{max_steps: {steps}}}
optim_wrapper: {{optimizer: {{type: AdamW, lr: 1.0e-3}}, clip_grad: {{max_norm: 1.0}}}}
default_hooks: {{logger: {{interval: 1}}, checkpoint: {{interval: 20, max_keep: 2}}}}
graph: {{verify_interval: 0, check: "off"}}
"""
LARGE = {"layers": 8, "width": 512, "batch": 32, "steps": 200}
SMALL = {"layers": 1, "width": 32, "batch": 2, "steps": 400}
FIRST_REPLAY = 10  # steps from the start of a process on: the others are eager, and one is captured


class Chain(chain.Chain):
    """The processes of one run; `program` is a command."""

    def arguments(self, mode, resume):
        return [*self.program, *super().arguments(mode, resume)[1:]]

    def end(self):
        """Weights and loss that the run ends with, in graph mode and without a step that fell back."""
        found = self.finish("graph", "auto")
        fallbacks = json.loads(pathlib.Path(f"{self.work_dir}.json").read_text(encoding="utf-8"))["fallbacks"]
        if fallbacks:
            chain.fail(f"steps ran eager: {fallbacks}")
        return found


def kill_once(run, rng):
    """False if the run was through before."""
    run.start("graph", "auto")
    target = run.newest + FIRST_REPLAY + rng.randint(0, 25)
    if not run.wait_for_step(target):
        run.process.wait()
        if run.process.returncode != 0:
            chain.fail(f"ended with {run.process.returncode}:\n{run.log}")
        return False
    time.sleep(rng.uniform(0, 0.01))
    code = run.signal(signal.SIGKILL)
    run.expect_resumed()
    return code == -signal.SIGKILL


def expect_unbroken(killed, unbroken, root, make):
    if killed == unbroken:
        return
    if make("unbroken_again").end() == unbroken:
        chain.fail(f"the killed run ended with weights and loss {killed}, an unbroken one with {unbroken}")
    print("NOTE bits not compared: an unbroken run differs from an unbroken run (kernels with atomics)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="for a device that computes nothing")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    print(f"--seed {options.seed}")
    rng = random.Random(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    config = options.folder / "config.yaml"
    size = SMALL if options.small else LARGE
    config.write_text(CONFIG.format(text=HERE.parents[2] / "CONTRIBUTING.md", **size), encoding="utf-8")

    def make(name):
        return Chain(options.program, options.folder / name, config)

    unbroken = make("unbroken").end()
    killed = make("killed")
    kills = sum(kill_once(killed, rng) for _ in range(options.kills))
    if kills == 0:
        chain.fail("the run was through before it could be killed")
    expect_unbroken(killed.end(), unbroken, options.folder, make)
    print(f"{kills} kills")


if __name__ == "__main__":
    main()
