"""R3: power is lost at a random call of a run that saves, and with it some of what nothing had synced.

The checkpoint that `latest` named by then, or a newer one, must load bit for bit. Every third time all is lost that may be.
"""

import re
import shutil

from small_run import SmallRun
from replay import Disk, read_log
from torture import found_step, leftovers

SAVES = 8


def weights_of_all(records, root):
    """Those of every checkpoint when it got its name."""
    disk, weights = Disk(root), {}
    for record in records:
        disk.play(record)
        name = record.second.rsplit("/", 1)[-1]
        if record.op == "rename" and re.fullmatch(r"step-\d+", name):
            node = disk.top.now[name].now["model.safetensors"]
            weights[name[5:]] = node.changed(node.writes)
    return weights


def one_cut(torture, small, records, root, weights, number):
    cut = torture.random.randint(0, len(records))
    torture.case = f"cut {number}, after {cut} of {len(records)} calls"
    disk = Disk(root)
    for record in records[:cut]:
        disk.play(record)
    latest = disk.top.now.get("latest")
    named = latest.changed(latest.writes).decode().strip() if latest else ""
    name = f"cut{number}"
    left = torture.folder / name
    left.mkdir()
    disk.write(left / "checkpoints", torture.random, loses_all=number % 3 == 0)
    found = torture.run("inspect", left / "checkpoints")
    if not named and found.code == 4:
        shutil.rmtree(left)
        return 0
    torture.require(found.code == 0, f"'latest' named {named or 'nothing'}, but none loads", found)
    step = found_step(found)
    torture.require(int(step) >= int(named[5:] or 0), f"expected {named} or a later one, found step {step}", found)
    here = (left / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()
    torture.require(here == weights[step], f"step-{step} has other weights than were saved", found)
    again = torture.run(*small.words(name), f"trainer.max_steps={2 * SAVES}")
    torture.require(again.code == 0 and small.hash_of(name) == small.expected_end, "the resumed run ended differently", again)
    torture.good(*small.words(name), f"trainer.max_steps={2 * SAVES + 2}")  # another save, which cleans up
    torture.require(not leftovers(left / "checkpoints"), f"left behind: {leftovers(left / 'checkpoints')}", again)
    shutil.rmtree(left)
    return 1


def run(torture):
    small = SmallRun(torture)
    loaded = cuts = 0
    for more in ("default_hooks.checkpoint.async=false", "default_hooks.checkpoint.async=true"):
        name = more[-5:].strip("=")
        log = torture.folder / f"{name}.log"
        torture.good(*small.words(name), f"trainer.max_steps={2 * SAVES}", more, TORTURE_UNDER=small.checkpoints(name), TORTURE_LOG=log)
        small.expected_end = small.hash_of(name)
        records = read_log(log)
        weights = weights_of_all(records, small.checkpoints(name))
        torture.require(len(weights) == SAVES, f"the log holds {len(weights)} saves, expected {SAVES}")
        for number in range(torture.count(10, 100)):
            loaded += one_cut(torture, small, records, small.checkpoints(name), weights, number)
            cuts += 1
    torture.require(loaded > cuts // 2, f"only {loaded} of {cuts} cuts left a checkpoint: this shows little")
    return f"{cuts}/{cuts} cuts: {loaded} loaded what was committed bit for bit and went on to the same end, {cuts - loaded} came before the first save"
