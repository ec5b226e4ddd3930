#!/usr/bin/env python3
"""Processes of a group are killed, crashed, stopped or asked to end at random moments of a run under torchrun.

usage: ddp_faults.py PROGRAM [--rounds N] [--seed N]

The others must name the lost rank and end; torchrun starts the group anew, and the run must end with the weights of one
that nothing befell. SIGTERM to one process alone must save and end all with 75, and --resume go on to the same weights.
Prints how long the survivors took.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import tempfile
import time

from ddp import CONFIG, Program, expect, words, workers_of

EPOCHS = 60
TIMEOUT = 3  # seconds that a process waits for a stopped one
RESTARTING = {"killed": signal.SIGKILL, "crashed": signal.SIGSEGV, "stopped": signal.SIGSTOP}


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_checkpoint(program, process, name):
    while not list((program.folder / name).glob("checkpoints/step-*")):
        expect(process.poll() is None, f"{name} ended early:\n{process.communicate()[0] if process.poll() is not None else ''}")
        time.sleep(0.01)


def strike(process, how, draw):
    """Seconds until the other process has ended, and the rank that was struck."""
    workers = workers_of(process.pid)
    expect(len(workers) == 2, f"expected two processes, found {workers}")
    rank = draw.randrange(2)
    begun = time.monotonic()
    os.kill(workers[rank], RESTARTING[how])
    while alive(workers[1 - rank]) and time.monotonic() - begun < 60:
        time.sleep(0.005)
    took = time.monotonic() - begun
    if how == "stopped":
        os.kill(workers[rank], signal.SIGKILL)  # torchrun would wait half a minute before it does so
    return took, rank


def restarted(program, number, how, draw, wanted):
    name, mode = f"fault_{number}", draw.choice(("eager", "graph"))
    line = program.by_torchrun(2, *words(name, mode, 8, f"trainer.max_epochs={EPOCHS}"), options=("--max-restarts", 1))
    process = program.start(line)
    wait_for_checkpoint(program, process, name)
    time.sleep(draw.uniform(0, 1.5))
    took, rank = strike(process, how, draw)
    code, text = program.finish(process)
    expect(code == 0, f"{name}: rank {rank} {how}: expected the restarted run to end well, found {code}:\n{text}")
    expect(program.result(name)["weights_hash"] == wanted, f"{name}: rank {rank} {how}: other weights than unbroken:\n{text}")
    named = re.search(rf"rank {rank} [^\n]*(dead or stopped|does not answer|lost|is gone|ended)", text) is not None
    return took, named, text


def interrupted(program, number, draw, wanted):
    """SIGTERM to one process: all save and end with 75."""
    name = f"term_{number}"
    own = words(name, draw.choice(("eager", "graph")), 8, f"trainer.max_epochs={EPOCHS}")
    group = ["--world-size", 2, "--master-port", 20000 + draw.randrange(10000)]
    started = [program.start([program.path, *own, "--rank", rank, *group]) for rank in range(2)]
    wait_for_checkpoint(program, started[0], name)
    time.sleep(draw.uniform(0, 1))
    started[draw.randrange(2)].send_signal(signal.SIGTERM)
    answers = [program.finish(process) for process in started]
    expect([code for code, _ in answers] == [75, 75], f"{name}: expected 75 twice: {answers}")
    program.run(program.by_torchrun(2, *own, "--resume", "auto"))
    expect(program.result(name)["weights_hash"] == wanted, f"{name}: other weights than unbroken")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        program = Program(options.program, pathlib.Path(folder))
        if not program.torchrun:
            print("no torchrun here: left out")
            return
        (program.folder / "run.yaml").write_text(CONFIG.replace("timeout: 20", f"timeout: {TIMEOUT}"))
        program.run(program.by_torchrun(2, *words("unbroken", "eager", 8, f"trainer.max_epochs={EPOCHS}")))
        wanted = program.result("unbroken")["weights_hash"]
        for number in range(options.rounds):
            how = ("killed", "crashed", "stopped", "term")[number % 4]
            if how == "term":
                interrupted(program, number, draw, wanted)
                print(f"{number}: SIGTERM to one: both saved, and went on to the same weights", flush=True)
                continue
            took, named, text = restarted(program, number, how, draw, wanted)
            print(f"{number}: {how}: the other ended after {took:.2f} s{'' if named else ', without a name: ' + text}", flush=True)


if __name__ == "__main__":
    main()
