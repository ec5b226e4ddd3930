#!/usr/bin/env python3
"""Machines join and leave a run of torchrun's while it trains (--nnodes 1:2, two agents on this machine).

usage: ddp_elastic.py PROGRAM

The run must go on with the next sample of the global order each time, in one work_dir, until it is told to stop.
"""

import re
import signal
import time

from ddp import NO_END, SECONDS, RankProgram, free_port
from processes import end
from program import run_checks

# The launcher asks once a second who is there, and takes a machine for lost after 15 seconds.
RENDEZVOUS = "last_call_timeout=5,join_timeout=300,keep_alive_interval=3,keep_alive_max_attempt=5"
START = r"EagerTrainer on cpu, seed 0(?:, (\d+) ranks)?\n.* training in mode eager from step (\d+)/"


def train(steps):
    return ["train", "run.yaml", "work_dir=elastic", "--json", "elastic.json", "data.val=null", "val_evaluator=null",
            "trainer.max_epochs=null", f"trainer.max_steps={steps}"]


class Agent:
    """torchrun on one machine. Of all processes that train together one writes what they all do: the log of the agent
    whose process number is lower."""

    def __init__(self, program, port, name):
        self.log = program.folder / name
        self.log.touch()
        line = [program.torchrun, "--no-python", "--nproc-per-node", 1, "--nnodes", "1:2", "--rdzv-backend", "c10d",
                "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic", "--local-addr", "localhost",
                "--max-restarts", 3, "--monitor-interval", 0.2, "--rdzv-conf", RENDEZVOUS, program.path, *train(NO_END)]
        self.process = program.start(["sh", "-c", 'exec "$0" "$@" > ' + name + " 2>&1", *line],
                                     # torchrun 2.11 leaves a newcomer without the address of a store that it has shared before.
                                     TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def starts(self):
        return list(re.finditer(START, self.log.read_text()))

    def trains(self, ranks, earlier=0):
        """Whether the newest run in its log, which had as many earlier ones, is one of so many ranks and well under way."""
        text, starts = self.log.read_text(), self.starts()
        if len(starts) <= earlier or int(starts[-1][1] or 1) != ranks:
            return False
        return max(numbers(r"info step (\d+)/", text[starts[-1].end():]), default=0) > int(starts[-1][2]) + 50


def numbers(pattern, text):
    return [int(number) for number in re.findall(pattern, text)]


def wait_until(happened, agents, what):
    begun = time.monotonic()
    while not happened():
        late, gone = time.monotonic() - begun > SECONDS, any(agent.process.poll() is not None for agent in agents)
        if late or gone:
            texts = "\n".join(f"{agent.log.name}:\n{agent.log.read_text()}" for agent in agents)
            raise AssertionError(f"{'waited in vain until' if late else 'torchrun ended before'} {what}:\n{texts}")
        time.sleep(0.05)


def join_and_leave(program):
    """One agent, then two, then one."""
    if not program.torchrun:
        return print("left out: no torchrun")
    port = free_port()
    first = Agent(program, port, "a.log")
    wait_until(lambda: first.trains(1), [first], "one trains")
    second = Agent(program, port, "b.log")
    both = [first, second]
    wait_until(lambda: any(agent.trains(2) for agent in both), both, "two train")
    earlier = len(first.starts())
    end(second.process)  # the machine is gone
    second.process.wait()
    wait_until(lambda: first.trains(1, earlier), [first], "one trains again")
    first.process.send_signal(signal.SIGTERM)
    first.process.wait(timeout=SECONDS)
    text = first.log.read_text() + second.log.read_text()
    stopped = numbers(r"interrupted after (\d+) steps", first.log.read_text())
    resumed = sorted(numbers(r"resumed from .* after step (\d+)", text))
    assert len(resumed) >= 2 and stopped[0] == resumed[0] < resumed[-1] < stopped[-1], (
        f"expected stops {stopped} when a machine comes and at the end, and to go on at each, found {resumed}:\n{text}")
    assert "earlier run" not in text, f"expected no run to begin anew:\n{text}"
    last = stopped[-1] + 50
    text = program.run([program.path, *train(last), "--resume", "auto"])
    assert f"after step {stopped[-1]}" in text, f"expected to go on after step {stopped[-1]}:\n{text}"
    assert program.result("elastic")["steps"] == last, f"expected {last} steps"


if __name__ == "__main__":
    run_checks(RankProgram, join_and_leave)
