#!/usr/bin/env python3
"""Processes of a group are killed, crashed, stopped or asked to end at random moments of a run under torchrun.

usage: ddp_faults.py PROGRAM [--rounds N] [--seed N]

The others must name the lost rank and end; torchrun starts the group anew, and the run must end with the weights of one
that nothing befell. SIGTERM to one process alone must save and end all with 75, and --resume go on to the same weights.
Prints how long the survivors took. A round in which the run was through before its moment had come is made again,
earlier.
"""

import argparse
import pathlib
import random
import re
import signal
import tempfile
import time

from ddp import CONFIG, RankProgram, expect, free_port, kill, words, workers_of

EPOCHS, STEPS = 60, 780
TIMEOUT = 3  # seconds that a process waits for a stopped one
SECONDS = 60  # for the survivor to end, at the very most
RESTARTING = {"killed": signal.SIGKILL, "crashed": signal.SIGSEGV, "stopped": signal.SIGSTOP}


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Moment:
    """Of a run: after its checkpoint of a random step, and a little later."""

    def __init__(self, draw, attempt):
        self.step = draw.randrange(5, max(6, STEPS * 2 // 3 // 4**attempt), 5)
        self.delay = draw.uniform(0, 0.02)

    def wait(self, program, name, *processes):
        program.wait_until_saved(name, self.step, *processes)
        time.sleep(self.delay)


def strike(process, how, draw):
    """Seconds until the other process has ended, and the rank that was struck; None if they were through before."""
    workers = workers_of(process.pid)
    if len(workers) != 2:
        return None
    rank = draw.randrange(2)
    begun = time.monotonic()
    kill(workers[rank], RESTARTING[how])
    while alive(workers[1 - rank]) and time.monotonic() - begun < SECONDS:
        time.sleep(0.005)
    took = time.monotonic() - begun
    if how == "stopped":
        kill(workers[rank], signal.SIGKILL)  # torchrun would wait half a minute before it does so
    return took, rank


def restarted(program, name, how, draw, attempt):
    """None if the run was through before; how long the survivor took, whether it named the lost one, what all said."""
    mode = draw.choice(("eager", "graph"))
    line = program.by_torchrun(2, *words(name, mode, 8, f"trainer.max_epochs={EPOCHS}"), options=("--max-restarts", 1))
    process = program.start(line)
    Moment(draw, attempt).wait(program, name, process)
    struck = strike(process, how, draw)
    code, text = program.finish(process)
    expect(code == 0, f"{name}: {how}: expected the run to end well, found {code}:\n{text}")
    if struck is None or "is started anew" not in text:
        return None
    took, rank = struck
    named = re.search(rf"rank {rank} [^\n]*(dead or stopped|does not answer|lost|is gone|ended)", text) is not None
    return f"{how}: the other ended after {took:.2f} s{'' if named else ', without a name: ' + text}"


def interrupted(program, name, draw, attempt):
    """SIGTERM to one process: all save and end with 75. None if they were through before."""
    own = words(name, draw.choice(("eager", "graph")), 8, f"trainer.max_epochs={EPOCHS}")
    group = ["--world-size", 2, "--master-port", free_port()]
    started = [program.start([program.path, *own, "--rank", rank, *group]) for rank in range(2)]
    Moment(draw, attempt).wait(program, name, *started)
    started[draw.randrange(2)].send_signal(signal.SIGTERM)
    answers = [program.finish(process) for process in started]
    if [code for code, _ in answers] == [0, 0] and not any("asked to stop" in text for _, text in answers):
        return None
    expect([code for code, _ in answers] == [75, 75], f"{name}: expected 75 twice: {answers}")
    program.run(program.by_torchrun(2, *own, "--resume", "auto"))
    return "SIGTERM to one: both saved, and went on"


def one_round(program, number, draw, wanted):
    how = ("killed", "crashed", "stopped", "term")[number % 4]
    for attempt in range(3):
        name = f"{how}_{number}_{attempt}"
        if how == "term":
            said = interrupted(program, name, draw, attempt)
        else:
            said = restarted(program, name, how, draw, attempt)
        expect(program.result(name)["weights_hash"] == wanted, f"{name}: other weights than unbroken: {said}")
        if said:
            return said
    return expect(False, f"{how}: a run of {STEPS} steps was always through before")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        program = RankProgram(options.program, pathlib.Path(folder))
        if not program.torchrun:
            print("no torchrun here: left out")
            return
        (program.folder / "run.yaml").write_text(CONFIG.replace("timeout: 60", f"timeout: {TIMEOUT}"))
        program.run(program.by_torchrun(2, *words("unbroken", "eager", 8, f"trainer.max_epochs={EPOCHS}")))
        wanted = program.result("unbroken")
        expect(wanted["steps"] == STEPS, f"expected {STEPS} steps, found {wanted['steps']}")
        for number in range(options.rounds):
            print(f"{number}: {one_round(program, number, draw, wanted['weights_hash'])}; the same weights", flush=True)


if __name__ == "__main__":
    main()
