#!/usr/bin/env python3
"""Machines join and leave a run of torchrun's while it trains (--nnodes 1:2, two agents on this machine).

usage: ddp_elastic.py PROGRAM

The run must go on with the next sample of the global order each time, in one work_dir, and end.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import tempfile
import time

from ddp import CONFIG, Program, expect, free_port, workers_of

UPDATES = 2000


def agent(program, port, log):
    line = [program.torchrun, "--no-python", "--nproc-per-node", 1, "--nnodes", "1:2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic", "--max-restarts", 3, "--monitor-interval", 0.2,
            "--rdzv-conf", "last_call_timeout=1,join_timeout=60,keep_alive_interval=2,keep_alive_max_attempt=3",
            program.path, "train", "run.yaml", "work_dir=elastic", "--json", "elastic.json",
            "data.val=null", "val_evaluator=null", "trainer.max_epochs=null", f"trainer.max_updates={UPDATES}"]
    return program.start(["sh", "-c", 'exec "$0" "$@" > ' + log + " 2>&1", *line],
                         # torchrun 2.11 leaves a newcomer without the address of a store that it has shared before.
                         TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def wait_for(program, process, log, text, count=1):
    path = program.folder / log
    begun = time.monotonic()
    while path.read_text().count(text) < count:
        expect(time.monotonic() - begun < 90, f"waited in vain for {count} '{text}':\n{path.read_text()}")
        expect(process.poll() is None, f"torchrun ended early:\n{path.read_text()}")
        time.sleep(0.05)


def join_and_leave(program):
    port = free_port()
    (program.folder / "a.log").touch()
    first = agent(program, port, "a.log")
    wait_for(program, first, "a.log", "info update 100/")
    second = agent(program, port, "b.log")
    wait_for(program, first, "a.log", "2 ranks")
    wait_for(program, first, "a.log", "resumed from")
    time.sleep(2)
    for pid in [*workers_of(second.pid), second.pid]:  # the machine is gone
        os.kill(pid, signal.SIGKILL)
    second.wait()
    expect(first.wait(timeout=120) == 0, f"expected a good end:\n{(program.folder / 'a.log').read_text()}")
    return (program.folder / "a.log").read_text()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.program, pathlib.Path(folder))
        if not program.torchrun:
            return print("left out: no torchrun")
        (program.folder / "run.yaml").write_text(CONFIG)
        text = join_and_leave(program)
        stopped = [int(n) for n in re.findall(r"interrupted after (\d+) updates", text)]
        resumed = [int(n) for n in re.findall(r"after update (\d+)", text)]
        expect(len(resumed) >= 2 and resumed[0] == stopped[0] and resumed[1] > resumed[0], f"expected to go on from {stopped}, found {resumed}:\n{text}")
        expect(f"finished after {UPDATES} updates" in text, f"expected {UPDATES} updates:\n{text}")
        expect(json.loads((program.folder / "elastic.json").read_text())["updates"] == UPDATES, "expected all updates")
        expect("earlier run" not in text, f"the run began anew:\n{text}")
        print(f"one process, then two, then one: went on after updates {resumed}")


if __name__ == "__main__":
    main()
