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
data: {train: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 2, num_workers: 1}}
trainer: {max_steps: STEPS}
optim_wrapper: {optimizer: {type: AdamW, lr: 1.0e-3}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Cosine}]
default_hooks: {logger: {interval: PART}, checkpoint: {interval: SAVES, max_keep: 2}}
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


def judge(torture, looks, steps, what):
    """KiB that it grew from the middle on."""
    late = looks[len(looks) // 2:]
    torture.require(len(late) > 3, f"{what}: only {len(looks)} looks")
    ends = [min(look.kib for look in part) for part in (late[:3], late[-3:])]  # between saves, whose copies come and go
    grown = ends[1] - ends[0]
    torture.require(grown <= SLACK + steps / 2 / 1000, f"{what}: memory grew by {grown} KiB from the middle on",
                    [look.kib for look in looks])
    for kind in ("threads", "files"):  # a save has some of its own, which come and go
        counts = [getattr(look, kind) for look in looks]
        torture.require(sorted(counts[len(counts) // 2:])[len(counts) // 4] <= max(counts[:len(counts) // 2]), f"{what}: {kind} {counts}")
    return grown


def soak(torture, mode, steps, saves):
    config, name = torture.folder / f"{mode}.yaml", f"{mode}_{saves}"
    text = CONFIG.replace("DATA", str(torture.folder / "data")).replace("STEPS", str(steps))
    config.write_text(text.replace("PART", str(steps // PARTS)).replace("SAVES", str(steps // saves)))
    process = torture.server().popen(["duet", "train", config, f"work_dir={torture.folder / name}", "--mode", mode])
    log, looks = "", []
    while True:
        part = os.read(process.stderr.fileno(), 1 << 16).decode()
        if not part:
            break
        log += part
        if len(re.findall(r"info step \d+/", log)) > len(looks):
            looks.append(Look(process.pid))
    torture.require(process.wait(60) == 0, "the run failed", log)
    return judge(torture, looks, steps, f"{steps} steps and {saves} saves in mode {mode}")


def open_and_close(torture, count):
    line = [torture.build / "tests" / "duet_open_close", str(count), torture.folder / "opened"]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    looks = []
    for _ in process.stdout:
        looks.append(Look(process.pid))
        process.stdin.write("\n")
        process.stdin.flush()
    torture.require(process.wait(60) == 0 and len(looks) == 10, f"duet_open_close ended with {process.returncode}")
    return judge(torture, looks, count * 8, f"{count} trainers of each mode")


def run(torture):
    small_data.write_data(torture.folder / "data")
    steps, saves, trainers = torture.count(20_000, 2_000_000), torture.count(80, 10_000), torture.count(20, 500)
    grown = {}
    for mode in ("eager", "graph"):
        torture.case = f"{steps} steps in mode {mode}"
        grown[mode] = soak(torture, mode, steps, saves=10)
    torture.case = f"{saves} saves"
    saved = soak(torture, "graph", saves, saves)
    torture.case = f"{trainers} trainers of each mode"
    opened = open_and_close(torture, trainers)
    return (f"{steps} steps of each mode: memory grew by {grown['eager']} KiB (eager) and {grown['graph']} KiB (graph) from the middle "
            f"on, files and threads constant; {saves} saves: {saved} KiB; {2 * trainers} trainers opened and closed: {opened} KiB")
