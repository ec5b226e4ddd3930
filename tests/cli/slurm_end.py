#!/usr/bin/env python3
"""The end of a SLURM job, as SLURM does it: a warning to all processes (--signal=USR1@60), at the time limit SIGCONT and
SIGTERM to all, SIGKILL to whoever is left after KillWait; then the job is requeued.

usage: slurm_end.py PROGRAM

Tried with processes that srun has started, and with a launcher among them (srun duet launch), which gets every signal
too, before the others or after them. All save and end before SIGKILL, and the requeued job goes on to the same weights.
"""

import argparse
import itertools
import pathlib
import signal
import tempfile
import time

from ddp import CONFIG, RankProgram, all_below, expect, free_port, kill, words

STOPPED = 75
EPOCHS, STEPS = 40, 520
KILL_WAIT = 60  # seconds; SLURM's default is 30, this machine may be busy with other things
WARNING, LIMIT = (signal.SIGUSR1,), (signal.SIGCONT, signal.SIGTERM)


class Srun:
    """Two tasks of one step. The limit comes right after the warning: the harder case."""

    def __init__(self, program):
        self.program, self.port = program, free_port()

    def start(self, own, restarts):
        job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost",
               "SLURM_RESTART_COUNT": str(restarts), "MASTER_PORT": str(self.port)}
        return [self.program.start([self.program.path, *own], SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **job)
                for rank in range(2)]

    @staticmethod
    def all_of(started):
        return [process.pid for process in started]

    @staticmethod
    def after_warning(_started):
        pass

    @staticmethod
    def is_end(codes):
        return codes == [STOPPED, STOPPED]


class Launch:
    """One task, which starts the others. A second signal while it ends its processes would end it at once, so that the
    limit must come later. Its exit code says nothing of them."""

    def __init__(self, program):
        self.program = program
        self.path = {"PATH": f"{pathlib.Path(program.torchrun).parent}:{program.environment['PATH']}"}

    def start(self, own, _restarts):
        return [self.program.start([self.program.path, "launch", "-n", 2, *own, "--resume", "auto"], **self.path)]

    @staticmethod
    def all_of(started):
        return [started[0].pid, *all_below(started[0].pid)]

    @staticmethod
    def after_warning(started):
        wait_for_end(started)

    @staticmethod
    def is_end(codes):
        return len(codes) == 1


def wait_for_end(started):
    begun = time.monotonic()
    while any(process.poll() is None for process in started) and time.monotonic() - begun < KILL_WAIT:
        time.sleep(0.01)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def send(numbers, pids):
    for number, pid in itertools.product(numbers, pids):
        kill(pid, number)


def end_job(program, how, name, own, warned, backwards):
    """None if the run was through before."""
    started = how.start(own, 0)
    program.wait_until_saved(name, 5, *started)
    pids = how.all_of(started)[::-1 if backwards else 1]
    if warned:
        send(WARNING, pids)
        how.after_warning(started)
    send(LIMIT, filter(is_alive, pids))
    wait_for_end(started)
    left = [pid for pid in pids if is_alive(pid)]
    send([signal.SIGKILL], left)
    answers = [program.finish(process) for process in started]
    codes, text = [code for code, _ in answers], "\n".join(text for _, text in answers)
    if f"finished after {STEPS} steps" in text:
        return None
    expect(not left and how.is_end(codes), f"{name}: expected all to end, found {codes}, alive {left}:\n{text}")
    expect("asked to stop" in text and "state saved" in text, f"{name}: expected a saved state:\n{text}")
    return text


def try_end(program, kind, warned, backwards, wanted):
    mode = "graph" if backwards else "eager"
    for attempt in range(3):
        name = f"{kind.__name__.lower()}_{'warned' if warned else 'limit'}_{mode}_{attempt}"
        own = words(name, mode, 8, f"trainer.max_epochs={EPOCHS}")
        how = kind(program)
        if not end_job(program, how, name, own, warned, backwards):
            continue
        answers = [program.finish(process) for process in how.start(own, 1)]
        expect(all(code == 0 for code, _ in answers), f"{name}: the requeued job failed: {answers}")
        expect(any("resumed from" in text for _, text in answers), f"{name}: expected a resume: {answers}")
        expect(program.result(name)["weights_hash"] == wanted, f"{name}: other weights than unbroken")
        return
    expect(False, f"{kind.__name__}: a run of {STEPS} steps was always through before")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = RankProgram(options.program, pathlib.Path(folder))
        (program.folder / "run.yaml").write_text(CONFIG)
        processes = Srun(program).start(words("unbroken", "eager", 8, f"trainer.max_epochs={EPOCHS}"), 0)
        answers = [program.finish(process) for process in processes]
        expect(all(code == 0 for code, _ in answers), f"the unbroken run failed: {answers}")
        wanted = program.result("unbroken")
        expect(wanted["steps"] == STEPS, f"expected {STEPS} steps, found {wanted['steps']}")
        kinds = [Srun, Launch] if program.torchrun else [Srun]
        for kind, warned, backwards in itertools.product(kinds, (True, False), (False, True)):
            begun = time.monotonic()
            try_end(program, kind, warned, backwards, wanted["weights_hash"])
            print(f"{kind.__name__}, {'USR1, ' if warned else ''}CONT, TERM{', the last first' if backwards else ''}: "
                  f"saved, and the same weights after the requeue, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
