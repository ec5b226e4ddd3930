#!/usr/bin/env python3
"""A run that is asked to stop by signals saves and says so by its exit code (R13 of scripts/torture sends one at any moment).

usage: signals.py PROGRAM

Several signals, as batch systems send them, save too; a second SIGINT alone ends the process at once, and the ranks of a
`duet launch`, which ends as they do. A work_dir has one run at a time. A compare or a dry run that is stopped leaves no files.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from chain import CONFIG, IMAGES, STOPPED, Chain, fail
from program import hear_signals

SECONDS = 60  # for the step in progress and the save, on a slow machine that is busy with other things
# Most of the time goes into validations, the rest into steps with a save every third.
RUN = CONFIG % (IMAGES % (1200, 16, "true", 1, ""), IMAGES % (1500, 32, "false", 0, ""), "max_epochs: 4, val_interval: 4",
                "type: AdamW, lr: 3.0e-3")
# One batch of a validation takes seconds: time for a second signal.
SLOW = CONFIG % (IMAGES % (64, 16, "true", 0, ""), IMAGES % (9000, 9000, "false", 0, ""), "max_steps: 50, val_interval: 1",
                 "type: SGD, lr: 0.01")


def wait_for(chain, pattern):
    """False if the process ends before its log matches."""
    while not re.search(pattern, chain.log):
        if not chain.read(60):
            return False
    return True


def wait_until_noticed(process, number):
    """Waits until a signal has come to the process. One that is sent before the other has come would be taken for it."""
    waiting = r"(?:SigPnd|ShdPnd):\s*([0-9a-f]+)"
    while process.poll() is None:
        masks = re.findall(waiting, pathlib.Path(f"/proc/{process.pid}/status").read_text())
        if not any(int(mask, 16) >> (number - 1) & 1 for mask in masks):
            return


def in_slow_validation(program, root, name, mode):
    """A process in a validation that takes seconds."""
    config = root / "slow.yaml"
    config.write_text(SLOW, encoding="utf-8")
    chain = Chain(program, root / f"{name}_{mode}", config)
    chain.start(mode, "none")
    wait_for(chain, "info step 2/")
    return chain


def stop_at_once(program, root, mode):
    """True if the second of two SIGINTs ended the process, False if the first was done with before."""
    chain = in_slow_validation(program, root, "twice", mode)
    chain.process.send_signal(signal.SIGINT)
    wait_until_noticed(chain.process, signal.SIGINT)
    begun = time.monotonic()
    code = chain.signal(signal.SIGINT)
    if code not in (128 + signal.SIGINT, STOPPED):
        fail(f"expected exit code {128 + signal.SIGINT} after a second SIGINT, found {code}:\n{chain.log}")
    if time.monotonic() - begun > SECONDS:
        fail("the second SIGINT did not end the process at once")
    return code == 128 + signal.SIGINT


def stop_by_several(program, root, mode, numbers):
    """As batch systems do it: a warning, then more."""
    chain = in_slow_validation(program, root, "_".join(number.name for number in numbers), mode)
    for number in numbers[:-1]:
        chain.process.send_signal(number)
        wait_until_noticed(chain.process, number)
    code = chain.signal(numbers[-1])
    if code != STOPPED or chain.newest_checkpoint() < 2:
        fail(f"expected exit code {STOPPED} and a checkpoint after {numbers}, found {code} and step "
             f"{chain.newest_checkpoint()}:\n{chain.log}")
    if numbers[0].name not in chain.log:
        fail(f"the log does not name the first of {numbers}:\n{chain.log}")


def outlive_the_reader_of_its_log(program, root):
    """Ctrl-C to `duet train ... | tee log` ends tee as well: the run saves all the same."""
    config = root / "slow.yaml"
    config.write_text(SLOW, encoding="utf-8")
    chain = Chain(program, root / "unread", config)
    process = subprocess.Popen(chain.arguments("eager", "none"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "info step 2/" not in (line := process.stdout.readline()):
        if not line:
            fail("the run ended before it trained")
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=SECONDS)
    if code != STOPPED or chain.newest_checkpoint() < 2:
        fail(f"expected exit code {STOPPED} and a checkpoint where nobody reads the log, found {code}")


def print_nowhere(program, root):
    """What is printed where the standard streams are closed, as some daemons start programs, goes into no file of the run."""
    config = root / "long.yaml"
    config.write_text(RUN, encoding="utf-8")
    chain = Chain(program, root / "closed", config)
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *chain.arguments("eager", "none"), "trainer.max_steps=4", "trainer.max_epochs=null"]
    code = subprocess.run(closed, check=False).returncode
    lines = (chain.work_dir / "log.jsonl").read_text(encoding="utf-8").splitlines() if code == 0 else []
    if code != 0 or not all(line.startswith("{") for line in lines):
        fail(f"without standard streams the run returned {code} and logged {lines}")


class LaunchedChain(Chain):
    """Two ranks, started by `duet launch`."""

    def arguments(self, mode, resume):
        program, *words = super().arguments(mode, resume)
        return [program, "launch", "-n", "2", *words]

    def ranks(self):
        launcher = children_of(self.process.pid)
        return children_of(launcher[0]) if launcher else []


def parents():
    """Of each process that is alive."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2] if entry.name.isdigit() else "Z0"
        except OSError:  # it has ended since
            continue
        if state not in "ZX":
            found[int(entry.name)] = int(parent)
    return found


def children_of(parent):
    return [pid for pid, above in parents().items() if above == parent]


def stop_launched(program, root, times):
    """The exit code of `duet launch` after as many Ctrl-C; nothing of it is left."""
    config = root / "slow.yaml"
    config.write_text(SLOW, encoding="utf-8")
    chain = LaunchedChain(program, root / f"launched_{times}", config)
    chain.start("eager", "none")
    if not wait_for(chain, "info step 2/"):
        fail(f"the ranks ended before they trained:\n{chain.log}")
    ranks = chain.ranks()
    if len(ranks) != 2:
        fail(f"expected two ranks, found {ranks}:\n{chain.log}")
    for _ in range(times - 1):
        chain.process.send_signal(signal.SIGINT)
        wait_until_noticed(chain.process, signal.SIGINT)
    begun = time.monotonic()
    code = chain.signal(signal.SIGINT)
    if code == STOPPED and chain.newest_checkpoint() < 2:
        fail(f"expected a checkpoint after SIGINT to the launcher:\n{chain.log}")
    left = [pid for pid in ranks if pid in parents()]
    if left or time.monotonic() - begun > SECONDS or "Traceback" in chain.log:
        fail(f"after {times} SIGINT to the launcher {left} are left, in {time.monotonic() - begun:.0f} s:\n{chain.log}")
    return code


def stop_all_launched(program, root):
    if stop_launched(program, root, 1) != STOPPED:
        fail(f"expected exit code {STOPPED} after one SIGINT to the launcher")
    killed = 128 + signal.SIGINT
    if not any(stop_launched(program, root, 2) == killed for _ in range(3)):
        fail(f"expected exit code {killed} after a second SIGINT to the launcher")


def refuse_second_run(program, root):
    """A work_dir has one run at a time, and a run that was killed holds nothing."""
    config = root / "long.yaml"
    config.write_text(RUN.replace("max_epochs: 4", "max_steps: 100000"), encoding="utf-8")
    chain = Chain(program, root / "shared", config)
    chain.work_dir.mkdir()
    elsewhere, lock = root / "elsewhere", chain.work_dir / "run.lock"
    elsewhere.write_text("of another", encoding="utf-8")
    lock.symlink_to(elsewhere)
    done = subprocess.run(chain.arguments("eager", "none"), capture_output=True, text=True, check=False)
    if done.returncode != 2 or elsewhere.read_text(encoding="utf-8") != "of another":
        fail(f"a lock that is a link returned {done.returncode} and led elsewhere:\n{done.stderr}")
    lock.unlink()
    chain.start("eager", "none")
    if not wait_for(chain, "info step 7/"):  # its save of step 3 is through, since that of step 6 has begun
        fail(f"the first run ended early:\n{chain.log}")
    # Still at work, but not so fast that a checkpoint is gone before an eval has read it.
    chain.process.send_signal(signal.SIGSTOP)
    begun = chain.temporary(), sorted(os.listdir(chain.work_dir))
    second = subprocess.run(chain.arguments("graph", "none"), capture_output=True, text=True, check=False)
    if second.returncode != 2 or f"process {chain.process.pid})" not in second.stderr or "another work_dir" not in second.stderr:
        fail(f"expected a second run to be refused with exit code 2, found {second.returncode}:\n{second.stderr}")
    if [name for name in os.listdir(chain.work_dir) if name.startswith("checkpoints.")]:
        fail(f"the second run moved checkpoints: {begun}, {os.listdir(chain.work_dir)}")
    # Others only read.
    done = subprocess.run([program, "eval", str(config), f"work_dir={chain.work_dir}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"eval beside the run returned {done.returncode}:\n{done.stderr}")
    if chain.signal(signal.SIGKILL) != -signal.SIGKILL:
        fail("the first run ended by itself")
    done = subprocess.run([*chain.arguments("eager", "auto"), "trainer.max_steps=8"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"after a killed run the next one returned {done.returncode}:\n{done.stderr}")


def stop_without_state(program, root, *arguments):
    """What keeps nothing leaves no temporary folder, and ends as shells say it of a signal."""
    config, scratch = root / "long.yaml", root / "scratch"
    scratch.mkdir(exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen([program, arguments[0], str(config), f"work_dir={root}/none", *arguments[1:]],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": str(scratch)})
        text = ""
        while "info step" not in text:
            line = process.stdout.readline()
            if not line:
                fail(f"duet {arguments} ended early:\n{text}")
            text += line
        if not list(scratch.iterdir()):
            fail(f"duet {arguments} works without a temporary folder: this test shows nothing")
        process.send_signal(number)
        text += process.communicate(timeout=SECONDS)[0]
        if process.returncode != 128 + number or f"stopped by {number.name}" not in text:
            fail(f"expected exit code {128 + number} of duet {arguments}, found {process.returncode}:\n{text}")
        if list(scratch.iterdir()) or (root / "none").exists():
            fail(f"duet {arguments} left {list(scratch.iterdir())} after {number.name}")


def main():
    program = sys.argv[1]
    hear_signals()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        refuse_second_run(program, root)
        stop_without_state(program, root, "compare", "--steps", "90000")
        stop_without_state(program, root, "train", "--dry-run", "90000", "data.train.sampler=infinite")
        at_once = sum(stop_at_once(program, root, mode) for mode in ("eager", "graph") for _ in range(2))
        if at_once == 0:
            fail("no second signal came in time to end a process at once")
        outlive_the_reader_of_its_log(program, root)
        print_nowhere(program, root)
        stop_all_launched(program, root)
        for numbers in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGINT)):
            stop_by_several(program, root, "eager", numbers)
    print(f"every signal ended with exit code {STOPPED}, or as it must")


if __name__ == "__main__":
    main()
