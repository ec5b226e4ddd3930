#!/usr/bin/env python3
"""What may befall a group of ranks under torchrun, at random moments of a run.

usage: ddp_faults.py PROGRAM [--faulty PROGRAM] [--rounds N] [--seed N] [--epochs N] [--set KEY=VALUE ...]

Processes are killed, crashed, stopped or asked to end; ranks throw in a hook or in their data, exit, come too late with
their data, and are cut off from the store. The others must name the lost rank and end; torchrun starts the group anew, and
the run must end with the weights of one that nothing befell. SIGTERM to one process alone must save and end all with 75, and
--resume go on to the same weights; a rank that is slow with its data changes nothing. Every third group has three ranks.
Prints how long the survivors took. A round in which the run was through before its moment had come is made again, earlier.
Faults from within need the program that knows them (--faulty, duet_faulty of the build); without it they are left out.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import tempfile
import time

from ddp import CONFIG, RankProgram, free_port, words
from processes import children_of, is_alive, kill
from proxy import Proxy

STEPS_PER_EPOCH = 13  # at the least
BATCH = {2: 8, 3: 5}
TIMEOUT = 3  # seconds that a process waits for a stopped one
SECONDS = 60  # for the survivor to end, at the very most
FROM_OUTSIDE = {"killed": signal.SIGKILL, "crashed": signal.SIGSEGV, "stopped": signal.SIGSTOP}
# A hook or transform of duet_faulty; a transform counts samples, and reads ahead.
FROM_WITHIN = {
    "exited": "custom_hooks=[{type: Fault, what: exit%s}]",
    "threw in a hook": "custom_hooks=[{type: Fault, what: throw%s}]",
    "threw in its data": "data.train.transforms=[{type: Fault, what: throw%s}]",
    "stood still in its data": f"data.train.transforms=[{{type: Fault, what: sleep, seconds: {3 * TIMEOUT}%s}}]",
}
SLOW = f"data.train.transforms=[{{type: Fault, what: sleep, seconds: {TIMEOUT / 3}%s}}]"
CUT_OFF = ("cut off from the store", "disconnected from the store")


class Moment:
    """Of a run: after its checkpoint of a random step, and a little later."""

    def __init__(self, draw, steps, attempt):
        self.step = draw.randrange(5, max(6, steps * 2 // 3 // 4**attempt), 5)
        self.delay = draw.uniform(0, 0.02)

    def wait(self, program, name, *processes):
        program.wait_until_saved(name, self.step, *processes)
        time.sleep(self.delay)


class Round:
    """A run of `ranks`, of which `rank` meets something."""

    def __init__(self, program, name, draw, attempt, ranks):
        self.program, self.name, self.draw, self.ranks = program, name, draw, ranks
        self.rank, self.mode = draw.randrange(ranks), draw.choice(("eager", "graph"))
        self.moment = Moment(draw, program.epochs * STEPS_PER_EPOCH, attempt)

    def words(self, *further):
        return words(self.name, self.mode, BATCH[self.ranks], f"trainer.max_epochs={self.program.epochs}", *self.program.settings, *further)

    def start(self, line=None, *further):
        """Under torchrun, which starts it anew once."""
        line = line or [self.program.path]
        launcher = [self.program.torchrun, "--no-python", "--nproc-per-node", self.ranks, "--standalone", "--max-restarts", 1]
        return self.program.start([*launcher, *line, *self.words(*further)])

    def end(self, process):
        code, text = self.program.finish(process)
        assert code == 0, f"{self.name}: expected the run to end well, found {code}:\n{text}"
        return text

    def named(self, text):
        """Whether a survivor has named the lost rank."""
        if re.search(rf"rank {self.rank} [^\n]*(dead or stopped|does not answer|lost|is gone|ended)", text):
            return ""
        return f", without a name: {text}"

    def survivors_end(self, process, strike):
        """Seconds until all but the rank have ended after the strike; None if they were through before."""
        pids = children_of(process.pid)
        if len(pids) != self.ranks:
            return None
        begun = time.monotonic()
        strike(pids[self.rank])
        others = [pid for rank, pid in enumerate(pids) if rank != self.rank]
        while any(map(is_alive, others)) and time.monotonic() - begun < SECONDS:
            time.sleep(0.005)
        took = time.monotonic() - begun
        kill(pids[self.rank], signal.SIGKILL)  # torchrun would wait half a minute before it does so
        return took

    def from_outside(self, how):
        process = self.start()
        self.moment.wait(self.program, self.name, process)
        took = self.survivors_end(process, lambda pid: kill(pid, FROM_OUTSIDE[how]))
        text = self.end(process)
        if took is None or "is started anew" not in text:
            return None
        return f"{how}: the others ended after {took:.2f} s{self.named(text)}"

    def fault(self, text):
        """An override, and the file that says that it has happened."""
        once = self.program.folder / f"{self.name}.once"
        at = self.moment.step * (BATCH[self.ranks] if text.startswith("data") else 1)
        return text % f", at: {at}, rank: {self.rank}, once: {once}", once

    def from_within(self, how):
        override, once = self.fault(FROM_WITHIN[how])
        text = self.end(self.start([self.program.faulty], override))
        if not once.exists() or text.count(" from step 0/") > 1:  # too late, or before its first save (samples are shuffled)
            return None
        assert "is started anew (restart 1)" in text, f"{self.name}: {how}, expected a restart:\n{text}"
        return f"{how}: all ended, and were started anew"

    def slow(self, how):
        override, once = self.fault(SLOW)
        text = self.end(self.start([self.program.faulty], override))
        assert "is started anew" not in text, f"{self.name}: a rank that is slow for a while must not end the run:\n{text}"
        return f"{how}: the others waited" if once.exists() else None

    def cut_off(self, how):
        """The rank reaches the store through a proxy, until it does not."""
        target = self.program.folder / f"{self.name}.target"
        proxy = Proxy(target)
        try:
            through = (f'if [ "$RANK" = {self.rank} ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then '
                       f'echo "$MASTER_ADDR $MASTER_PORT" > {target}; export MASTER_ADDR=127.0.0.1 MASTER_PORT={proxy.port}; fi; '
                       'exec "$0" "$@"')
            process = self.start(["bash", "-c", through, self.program.path])
            self.moment.wait(self.program, self.name, process)
            took = self.survivors_end(process, lambda _: proxy.drop() if how == CUT_OFF[0] else proxy.close())
        finally:
            proxy.close()
        text = self.end(process)
        if took is None or "is started anew" not in text:
            return None
        assert took < SECONDS, f"{self.name}: {how}: the others did not end within {SECONDS} s:\n{text}"
        return f"{how}: the others ended after {took:.2f} s{self.named(text)}"

    def interrupted(self, how):
        """SIGTERM to one process: all save and end with 75. None if they were through before."""
        group = ["--world-size", self.ranks, "--master-port", free_port()]
        started = [self.program.start([self.program.path, *self.words(), "--rank", rank, *group]) for rank in range(self.ranks)]
        self.moment.wait(self.program, self.name, *started)
        started[self.rank].send_signal(signal.SIGTERM)
        answers = [self.program.finish(process) for process in started]
        codes = [code for code, _ in answers]
        if not any(codes) and not any("asked to stop" in text for _, text in answers):
            return None
        assert set(codes) == {75}, f"{self.name}: expected 75 of all: {answers}"
        self.program.run(self.program.by_torchrun(self.ranks, *self.words("--resume", "auto")))
        return f"{how}: all saved, and went on"


def kinds(program):
    """What befalls them -> what does so."""
    found = {how: Round.from_outside for how in FROM_OUTSIDE}
    found["SIGTERM to one"] = Round.interrupted
    found.update({how: Round.cut_off for how in CUT_OFF})
    if program.faulty:
        found.update({how: Round.from_within for how in FROM_WITHIN})
        found["slow with its data"] = Round.slow
    return found


def one_round(program, number, draw, how, ranks, wanted):
    for attempt in range(3):
        name = f"{how.replace(' ', '_')}_{number}_{attempt}"
        said = kinds(program)[how](Round(program, name, draw, attempt, ranks), how)
        assert program.result(name)["weights_hash"] == wanted, f"{name}: other weights than unbroken: {said}"
        if said:
            return f"{said} ({ranks} ranks)"
    raise AssertionError(f"{how}: a run of {program.epochs} epochs was always through before")


def unbroken(program, ranks):
    name = f"unbroken_{ranks}"
    own = words(name, "eager", BATCH[ranks], f"trainer.max_epochs={program.epochs}", *program.settings)
    program.run(program.by_torchrun(ranks, *own))
    wanted = program.result(name)
    steps = program.epochs * STEPS_PER_EPOCH
    assert wanted["steps"] >= steps, f"expected at least {steps} steps, found {wanted['steps']}"
    return wanted["weights_hash"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--faulty", default="")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--set", nargs="*", default=[], help="further config values")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does: other numbers of threads round differently
    with tempfile.TemporaryDirectory() as folder:
        program = RankProgram(options.program, pathlib.Path(folder))
        if not program.torchrun:
            print("no torchrun here: left out")
            return
        program.faulty, program.epochs, program.settings = options.faulty, options.epochs, options.set
        program.write("run.yaml", CONFIG.replace("timeout: 60", f"timeout: {TIMEOUT}"))
        ways, wanted = list(kinds(program)), {}
        draw.shuffle(ways)
        for number in range(options.rounds):
            ranks = 3 if number % 3 == 2 else 2
            if ranks not in wanted:
                wanted[ranks] = unbroken(program, ranks)
            said = one_round(program, number, draw, ways[number % len(ways)], ranks, wanted[ranks])
            print(f"{number}: {said}; the same weights", flush=True)


if __name__ == "__main__":
    main()
