"""R12: steps of both modes, saves, and trainers that are opened and closed: memory, files and threads stay what they are.

Memory is looked at after every fortieth part of a run: from the middle on it may grow by 1 KB per 1 000 steps, and by what an
allocator may keep of a page.
"""

import os
import pathlib
import re
import subprocess

import small_data

CONFIG = """
model: {type: Mlp, hidden: [8], dropout: 0.1}
data: {train: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 2, num_workers: 1}}
trainer: {max_steps: %d}
optim_wrapper: {optimizer: {type: AdamW, lr: 1.0e-3}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Cosine}]
default_hooks: {logger: {interval: %d}, checkpoint: {interval: %d, max_keep: 2}}
graph: {fuse_after: 0}  # kernels and what their trials leave come at the beginning
"""
SLACK = 256  # KiB
PARTS = 40


class Look:
    """At a process."""

    def __init__(self, pid):
        folder = pathlib.Path(f"/proc/{pid}")
        status = (folder / "status").read_text()
        self.kib = sum(int(re.search(rf"{name}:\s+(\d+)", status).group(1)) for name in ("RssAnon", "RssShmem"))
        self.threads = int(re.search(r"Threads:\s+(\d+)", status).group(1))
        self.files = len(os.listdir(folder / "fd"))


def judge(torture, looks, steps):
    """KiB that it grew from the middle on."""
    late = looks[len(looks) // 2:]
    torture.require(len(late) > 3, f"only {len(looks)} looks")
    ends = [min(look.kib for look in part) for part in (late[:3], late[-3:])]  # between saves, whose copies come and go
    grown = ends[1] - ends[0]
    torture.require(grown <= SLACK + steps / 2 / 1000, f"memory grew by {grown} KiB from the middle on", [look.kib for look in looks])
    for kind in ("threads", "files"):  # a save has some of its own, which come and go
        counts = [getattr(look, kind) for look in looks]
        torture.require(sorted(counts[len(counts) // 2:])[len(counts) // 4] <= max(counts[:len(counts) // 2]), f"{kind} {counts}")
    return grown


def watched(pid, stream, line):
    """Looks at it, one at each part of what it says that has such a line."""
    looks = []
    while part := os.read(stream.fileno(), 1 << 16):
        if re.search(line, part.decode()):
            looks.append(Look(pid))
    return looks


def soak(torture, mode, steps, saves):
    torture.case = f"{steps} steps and {saves} saves in mode {mode}"
    (torture.folder / "run.yaml").write_text(CONFIG % (steps, steps // PARTS, steps // saves))
    words = ["duet", "train", "run.yaml", f"work_dir={mode}_{saves}", "--mode", mode]
    process = torture.server().popen(words, cwd=torture.folder)
    looks = watched(process.pid, process.stderr, r"info step \d+/")
    torture.require(process.wait(60) == 0, "the run failed")
    return judge(torture, looks, steps)


def open_and_close(torture, count):
    """Trainers of both modes, with loaders, hooks and saves, by the tests of a resume."""
    torture.case = f"trainers that are made and ended {count} times"
    line = [torture.built("duet_hooks_tests"), "--gtest_filter=*LoggerRun.WritesTheSameLinesAfterAResume*", "--gtest_brief=0", f"--gtest_repeat={count}"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    looks = watched(process.pid, process.stdout, r"Repeating all tests")
    torture.require(process.wait(60) == 0, "a test failed")
    return judge(torture, looks, count)


def run(torture):
    small_data.write_data(torture.folder / "data")
    steps, saves, trainers = torture.count(20_000, 2_000_000), torture.count(80, 10_000), torture.count(40, 500)
    eager, graph = (soak(torture, mode, steps, saves=10) for mode in ("eager", "graph"))
    saved, opened = soak(torture, "graph", saves, saves), open_and_close(torture, trainers)
    return (f"{steps} steps of each mode: memory grew by {eager} KiB (eager) and {graph} KiB (graph) from the middle on, files and "
            f"threads constant; {saves} saves: {saved} KiB; trainers opened and closed {trainers} times: {opened} KiB")
