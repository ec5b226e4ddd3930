#!/usr/bin/env python3
"""A run that is asked to stop by signals saves and says so by its exit code (R13 of scripts/torture sends one at any moment).

usage: signals.py PROGRAM

Several signals, as batch systems send them, save too; a second SIGINT alone ends the process at once, and the ranks of a
`duet launch`, which ends as they do. A work_dir has one run at a time. A compare or a dry run that is stopped leaves no files.
"""

import fcntl
import os
import pathlib
import re
import signal
import subprocess
import time

from chain import CONFIG, IMAGES, STOPPED, Chain
from processes import children_of, is_alive
from program import Program, hear_signals, run_checks

SECONDS = 60  # for the step in progress and the save, on a slow machine that is busy with other things
# Most of the time goes into validations, the rest into steps with a save every third.
RUN = CONFIG % (IMAGES % (1200, 16, "true", 1, ""), IMAGES % (1500, 32, "false", 0, ""), "max_epochs: 4, val_interval: 4",
                "type: AdamW, lr: 3.0e-3")
LONG = RUN.replace("max_epochs: 4", "max_steps: 100000")
# One batch of a validation takes seconds: time for a second signal.
SLOW = CONFIG % (IMAGES % (64, 16, "true", 0, ""), IMAGES % (9000, 9000, "false", 0, ""), "max_steps: 50, val_interval: 1",
                 "type: SGD, lr: 0.01")


def chain_of(program, folder, text, kind=Chain):
    config = folder.with_suffix(".yaml")
    config.write_text(text, encoding="utf-8")
    return kind(program, folder, config)


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
    chain = chain_of(program, root / f"{name}_{mode}", SLOW)
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
    assert code in (128 + signal.SIGINT, STOPPED), (
        f"expected exit code {128 + signal.SIGINT} after a second SIGINT, found {code}:\n{chain.log}")
    assert time.monotonic() - begun <= SECONDS, "the second SIGINT did not end the process at once"
    return code == 128 + signal.SIGINT


def stop_by_several(program, root, mode, numbers):
    """As batch systems do it: a warning, then more."""
    chain = in_slow_validation(program, root, "_".join(number.name for number in numbers), mode)
    for number in numbers[:-1]:
        chain.process.send_signal(number)
        wait_until_noticed(chain.process, number)
    code = chain.signal(numbers[-1])
    assert code == STOPPED and chain.newest_checkpoint() >= 2, (
        f"expected exit code {STOPPED} and a checkpoint after {numbers}, found {code} and step {chain.newest_checkpoint()}:\n{chain.log}")
    assert numbers[0].name in chain.log, f"the log does not name the first of {numbers}:\n{chain.log}"


def outlive_the_reader_of_its_log(program, root):
    """Ctrl-C to `duet train ... | tee log` ends tee as well: the run saves all the same."""
    chain = chain_of(program, root / "unread", SLOW)
    process = subprocess.Popen(chain.arguments("eager", "none"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "info step 2/" not in (line := process.stdout.readline()):
        assert line, "the run ended before it trained"
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=SECONDS)
    assert code == STOPPED and chain.newest_checkpoint() >= 2, (
        f"expected exit code {STOPPED} and a checkpoint where nobody reads the log, found {code}")


def print_nowhere(program, root):
    """What is printed where the standard streams are closed, as some daemons start programs, goes into no file of the run."""
    chain = chain_of(program, root / "closed", RUN)
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *chain.arguments("eager", "none"), "trainer={max_steps: 4}"]
    code = subprocess.run(closed, check=False).returncode
    lines = (chain.work_dir / "log.jsonl").read_text(encoding="utf-8").splitlines() if code == 0 else []
    assert code == 0 and all(line.startswith("{") for line in lines), (
        f"without standard streams the run returned {code} and logged {lines}")


class LaunchedChain(Chain):
    """Two ranks, started by `duet launch`."""

    def arguments(self, mode, resume):
        program, *words = super().arguments(mode, resume)
        return [program, "launch", "-n", "2", *words]

    def ranks(self):
        launcher = children_of(self.process.pid)
        return children_of(launcher[0]) if launcher else []


def stop_launched(program, root, times):
    """The exit code of `duet launch` after as many Ctrl-C; nothing of it is left."""
    chain = chain_of(program, root / f"launched_{times}", SLOW, LaunchedChain)
    chain.start("eager", "none")
    assert wait_for(chain, "info step 2/"), f"the ranks ended before they trained:\n{chain.log}"
    ranks = chain.ranks()
    assert len(ranks) == 2, f"expected two ranks, found {ranks}:\n{chain.log}"
    for _ in range(times - 1):
        chain.process.send_signal(signal.SIGINT)
        wait_until_noticed(chain.process, signal.SIGINT)
    begun = time.monotonic()
    code = chain.signal(signal.SIGINT)
    assert code != STOPPED or chain.newest_checkpoint() >= 2, f"expected a checkpoint after SIGINT to the launcher:\n{chain.log}"
    left = [pid for pid in ranks if is_alive(pid)]
    assert not left and time.monotonic() - begun <= SECONDS and "Traceback" not in chain.log, (
        f"after {times} SIGINT to the launcher {left} are left, in {time.monotonic() - begun:.0f} s:\n{chain.log}")
    return code


def stop_all_launched(program, root):
    assert stop_launched(program, root, 1) == STOPPED, f"expected exit code {STOPPED} after one SIGINT to the launcher"
    killed = 128 + signal.SIGINT
    assert any(stop_launched(program, root, 2) == killed for _ in range(3)), (
        f"expected exit code {killed} after a second SIGINT to the launcher")


def refuse_second_run(program, root):
    """A work_dir has one run at a time, and a run that was killed holds nothing."""
    chain = chain_of(program, root / "shared", LONG)
    chain.work_dir.mkdir()
    elsewhere, lock = root / "elsewhere", chain.work_dir / "run.lock"
    elsewhere.write_text("of another", encoding="utf-8")
    lock.symlink_to(elsewhere)
    done = subprocess.run(chain.arguments("eager", "none"), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and elsewhere.read_text(encoding="utf-8") == "of another", (
        f"a lock that is a link returned {done.returncode} and led elsewhere:\n{done.stderr}")
    lock.unlink()
    chain.start("eager", "none")
    # Its save of step 3 is through, since that of step 6 has begun.
    assert wait_for(chain, "info step 7/"), f"the first run ended early:\n{chain.log}"
    # Still at work, but not so fast that a checkpoint is gone before an eval has read it.
    chain.process.send_signal(signal.SIGSTOP)
    begun = chain.temporary(), sorted(os.listdir(chain.work_dir))
    second = subprocess.run(chain.arguments("graph", "none"), capture_output=True, text=True, check=False)
    words = (f"process {chain.process.pid})", "another work_dir")
    assert second.returncode == 2 and all(word in second.stderr for word in words), (
        f"expected a second run to be refused with exit code 2, found {second.returncode}:\n{second.stderr}")
    assert not [name for name in os.listdir(chain.work_dir) if name.startswith("checkpoints.")], (
        f"the second run moved checkpoints: {begun}, {os.listdir(chain.work_dir)}")
    # Others only read.
    done = subprocess.run([program, "eval", str(chain.config), f"work_dir={chain.work_dir}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"eval beside the run returned {done.returncode}:\n{done.stderr}"
    assert chain.signal(signal.SIGKILL) == -signal.SIGKILL, "the first run ended by itself"
    done = subprocess.run([*chain.arguments("eager", "auto"), "trainer.max_steps=8"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"after a killed run the next one returned {done.returncode}:\n{done.stderr}"


def lose_the_folder(program, root):
    """A run whose folder is moved away saves into a new one, unless another run has begun there."""
    chain = chain_of(program, root / "moved", LONG)
    chain.start("eager", "none")
    assert wait_for(chain, "info step 4/"), f"the run ended early:\n{chain.log}"
    os.rename(chain.work_dir, root / "away")
    assert wait_for(chain, "the lock of this run is gone"), f"the run ended:\n{chain.log}"
    while not chain.newest_checkpoint():
        assert chain.read(60), f"the run ended:\n{chain.log}"
    chain.process.send_signal(signal.SIGSTOP)
    os.rename(chain.work_dir, root / "away2")
    chain.work_dir.mkdir()
    with open(chain.work_dir / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = chain.signal(signal.SIGCONT)
    assert code == 2 and "at work in" in chain.log, f"beside another run it ended with {code}:\n{chain.log}"
    assert os.listdir(chain.work_dir) == ["run.lock"], f"it wrote {os.listdir(chain.work_dir)}"


def stop_without_state(program, root, *arguments):
    """What keeps nothing leaves no temporary folder, and ends as shells say it of a signal."""
    config, scratch = chain_of(program, root / "kept_nowhere", LONG).config, root / "scratch"
    scratch.mkdir(exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen([program, arguments[0], str(config), f"work_dir={root}/none", *arguments[1:]],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": str(scratch)})
        text = ""
        while "info step" not in text:
            line = process.stdout.readline()
            assert line, f"duet {arguments} ended early:\n{text}"
            text += line
        assert list(scratch.iterdir()), f"duet {arguments} works without a temporary folder: this test shows nothing"
        process.send_signal(number)
        text += process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 128 + number and f"stopped by {number.name}" in text, (
            f"expected exit code {128 + number} of duet {arguments}, found {process.returncode}:\n{text}")
        assert not list(scratch.iterdir()) and not (root / "none").exists(), (
            f"duet {arguments} left {list(scratch.iterdir())} after {number.name}")


def check_signals(case):
    program, root = case.path, case.folder
    refuse_second_run(program, root)
    lose_the_folder(program, root)
    stop_without_state(program, root, "compare", "--steps", "90000")
    stop_without_state(program, root, "train", "--dry-run", "90000", "data.train.sampler=infinite")
    at_once = sum(stop_at_once(program, root, mode) for mode in ("eager", "graph") for _ in range(2))
    assert not at_once == 0, "no second signal came in time to end a process at once"
    outlive_the_reader_of_its_log(program, root)
    print_nowhere(program, root)
    stop_all_launched(program, root)
    for numbers in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGINT)):
        stop_by_several(program, root, "eager", numbers)


if __name__ == "__main__":
    hear_signals()
    run_checks(Program, check_signals)
