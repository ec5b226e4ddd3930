#!/usr/bin/env python3
"""Machines join and leave a run of torchrun's while it trains (--nnodes 1:2, two agents on this machine).

usage: ddp_elastic.py PROGRAM

The run must go on with the next sample of the global order each time, in one work_dir, until it is told to stop.
"""

import argparse
import os
import pathlib
import re
import signal
import tempfile
import time

from ddp import CONFIG, Program, expect, free_port, workers_of

NO_END = 10_000_000  # The run ends when it is told to, so that no machine is too fast for what happens on the way.
SECONDS = 90


def train(updates):
    return ["train", "run.yaml", "work_dir=elastic", "--json", "elastic.json", "data.val=null", "val_evaluator=null",
            "trainer.max_epochs=null", f"trainer.max_updates={updates}"]


def agent(program, port, log):
    line = [program.torchrun, "--no-python", "--nproc-per-node", 1, "--nnodes", "1:2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic", "--max-restarts", 3, "--monitor-interval", 0.2,
            "--rdzv-conf", "last_call_timeout=1,join_timeout=60,keep_alive_interval=2,keep_alive_max_attempt=3",
            program.path, *train(NO_END)]
    return program.start(["sh", "-c", 'exec "$0" "$@" > ' + log + " 2>&1", *line],
                         # torchrun 2.11 leaves a newcomer without the address of a store that it has shared before.
                         TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def numbers(pattern, text):
    return [int(number) for number in re.findall(pattern, text)]


def wait_until(happened, process, log, what):
    begun = time.monotonic()
    while not happened():
        expect(time.monotonic() - begun < SECONDS, f"waited in vain until {what}:\n{log.read_text()}")
        expect(process.poll() is None, f"torchrun ended before {what}:\n{log.read_text()}")
        time.sleep(0.05)


def join_and_leave(program):
    """One agent, then two, then one: the first agent's log, and the updates after which the run went on."""
    port, log = free_port(), program.folder / "a.log"
    log.touch()
    first = agent(program, port, "a.log")

    def resumed():
        return numbers(r"resumed from .* after update (\d+)", log.read_text())

    def trains_on(count):
        return len(resumed()) == count and max(numbers(r"info update (\d+)/", log.read_text())) > resumed()[-1] + 50

    wait_until(lambda: "info update 100/" in log.read_text(), first, log, "it trains")
    second = agent(program, port, "b.log")
    wait_until(lambda: trains_on(1), first, log, "two train")
    for pid in [*workers_of(second.pid), second.pid]:  # the machine is gone
        os.kill(pid, signal.SIGKILL)
    second.wait()
    wait_until(lambda: trains_on(2), first, log, "one trains again")
    first.terminate()
    first.wait(timeout=SECONDS)
    return log.read_text(), resumed()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.program, pathlib.Path(folder))
        if not program.torchrun:
            return print("left out: no torchrun")
        (program.folder / "run.yaml").write_text(CONFIG)
        text, resumed = join_and_leave(program)
        stopped = numbers(r"interrupted after (\d+) updates", text)
        expect(len(stopped) == 2 and stopped[0] == resumed[0] < resumed[1] < stopped[1],
               f"expected stops {stopped} when a machine comes and at the end, and to go on at each, found {resumed}:\n{text}")
        expect("2 ranks" in text and "earlier run" not in text, f"expected two ranks, and no run begun anew:\n{text}")
        end = stopped[1] + 50
        text = program.run([program.path, *train(end), "--resume", "auto"])
        expect(f"after update {stopped[1]}" in text, f"expected to go on after update {stopped[1]}:\n{text}")
        expect(program.result("elastic")["updates"] == end, f"expected {end} updates")
        print(f"one process, then two, then one: went on after updates {resumed}")


if __name__ == "__main__":
    main()
