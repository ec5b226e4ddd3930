#!/usr/bin/env python3
"""The end of a SLURM job, as SLURM does it: a warning to all processes (--signal=USR1@60), at the time limit SIGCONT and
SIGTERM to all, SIGKILL to whoever is left after KillWait; then the job is requeued.

usage: slurm_end.py PROGRAM

Tried with processes that srun has started, and with a launcher among them (srun duet launch), which gets every signal
too, before the others or after them. All save and end before SIGKILL, and the requeued job goes on to the same weights.
"""

import itertools
import pathlib
import signal
import time

from ddp import RankProgram, free_port, words
from processes import all_below, is_alive, kill
from program import run_checks

STOPPED = 75
EPOCHS, STEPS = 40, 520
KILL_WAIT = 60  # seconds; SLURM's default is 30, this machine may be busy with other things
WARNING, LIMIT = (signal.SIGUSR1,), (signal.SIGCONT, signal.SIGTERM)


def srun(program, own, restarts):
    """Two tasks of one step."""
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost",
           "SLURM_RESTART_COUNT": str(restarts), "MASTER_PORT": str(free_port())}
    return [program.start([program.path, *own], SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **job) for rank in range(2)]


def launch(program, own, _restarts):
    """One task, which starts the others. A second signal while it ends its processes would end it at once, so that the limit
    must come later than the warning. Its exit code says nothing of them."""
    path = {"PATH": f"{pathlib.Path(program.torchrun).parent}:{program.environment['PATH']}"}
    return [program.start([program.path, "launch", "-n", 2, *own, "--resume", "auto"], **path)]


def wait_for_end(started):
    begun = time.monotonic()
    while any(process.poll() is None for process in started) and time.monotonic() - begun < KILL_WAIT:
        time.sleep(0.01)


def send(numbers, pids):
    for number, pid in itertools.product(numbers, pids):
        kill(pid, number)


def end_job(program, how, name, own, warned):
    """False if the run was through before."""
    started = how(program, own, 0)
    program.wait_until_saved(name, 5, *started)
    pids = [pid for process in started for pid in (*all_below(process.pid), process.pid)]
    if warned:
        send(WARNING, pids)
        wait_for_end(started)
    send(LIMIT, filter(is_alive, pids))
    wait_for_end(started)
    left = [pid for pid in pids if is_alive(pid)]
    send([signal.SIGKILL], left)
    answers = [program.finish(process) for process in started]
    text = "\n".join(text for _, text in answers)
    if f"finished after {STEPS} steps" in text:
        return False
    as_it_must = how is launch or all(code == STOPPED for code, _ in answers)
    assert not left and as_it_must, f"{name}: expected all to end, found {answers}, alive {left}"
    assert "asked to stop" in text and "state saved" in text, f"{name}: expected a saved state:\n{text}"
    return True


def try_end(program, how, mode, warned, wanted):
    for attempt in range(3):
        name = f"{how.__name__}_{attempt}"
        own = words(name, mode, 8, f"trainer.max_epochs={EPOCHS}")
        if not end_job(program, how, name, own, warned):
            continue
        answers = [program.finish(process) for process in how(program, own, 1)]
        assert all(code == 0 for code, _ in answers), f"{name}: the requeued job failed: {answers}"
        assert any("resumed from" in text for _, text in answers), f"{name}: expected a resume: {answers}"
        assert program.result(name)["weights_hash"] == wanted, f"{name}: other weights than unbroken"
        return
    raise AssertionError(f"{how.__name__}: a run of {STEPS} steps was always through before")


def ends(program):
    unbroken = srun(program, words("unbroken", "eager", 8, f"trainer.max_epochs={EPOCHS}"), 0)
    answers = [program.finish(process) for process in unbroken]
    assert all(code == 0 for code, _ in answers), f"the unbroken run failed: {answers}"
    wanted = program.result("unbroken")
    assert wanted["steps"] == STEPS, f"expected {STEPS} steps, found {wanted['steps']}"
    try_end(program, srun, "graph", False, wanted["weights_hash"])
    if program.torchrun:
        try_end(program, launch, "eager", True, wanted["weights_hash"])


if __name__ == "__main__":
    run_checks(RankProgram, ends)
