"""Checkpoints whose files are whole but do not belong together: part of R4."""

import json
import shutil

from small_run import LONGER, SmallRun
from torture import leftovers

DATA_FILES = ("model.safetensors", "state.safetensors", "state.json")


def move_a_tensor(document, random):
    tensor, key = random.choice(document["tensors"]), random.choice(("offset", "bytes"))
    tensor[key] = random.choice((tensor[key] + 4, 2**63, 2**64 - 1, 0 if tensor[key] else 8))


def other_hash(entry):
    entry["xxh3"] = entry["xxh3"][1:] + ("1" if entry["xxh3"][-1] == "0" else "0")


# What is wrong -> the change of the manifest, which gets the right hash of itself again.
LIES = {
    "the format of another version": lambda document, random: document.update(
        format=random.choice((0, 2, 99, -1, "1", 1.5, None, [], 2**63))),
    "the step of another": lambda document, random: document.update(step=random.choice((0, 2, 5, -4, 2**62, "4"))),
    "the hash of a file": lambda document, random: other_hash(random.choice(document["files"])),
    "the hash of a tensor": lambda document, random: other_hash(random.choice(document["tensors"])),
    "a file not listed": lambda document, random: document["files"].remove(random.choice(document["files"])),
    "a file from elsewhere": lambda document, random: random.choice(document["files"]).update(
        name=random.choice(("../step-2/state.json", "/etc/passwd", "", "."))),
    "a tensor out of its place": move_a_tensor,
}
# Files of the step before, or of another run.
SWAPS = {"a file of another checkpoint": 1, "all but the manifest": len(DATA_FILES)}


def spoil(reader, small, newest, how):
    random = small.torture.random
    if how in SWAPS:
        source = random.choice((newest.with_name("step-2"), small.checkpoints("other") / "step-4"))
        for file in random.sample(DATA_FILES, SWAPS[how]):
            shutil.copy(source / file, newest / file)
        return
    path = newest / "manifest.json"
    document = json.loads(path.read_text())
    document.pop("manifest_xxh3")
    LIES[how](document, random)
    path.write_text(json.dumps(document, indent=2).removesuffix("\n}"))
    reader.ask("body_of_manifest", path)


def one_case(torture, small, reader, how):
    """The wrong one is refused and passed over; the one before goes on to the unbroken end."""
    name = small.copy()
    spoil(reader, small, small.checkpoints(name) / "step-4", how)
    done = torture.run("inspect", small.checkpoints(name) / "step-4")
    small.check_message(done)
    torture.require(done.code == 4 and "step-4" in done.text, "a wrong checkpoint was not refused", done)
    done = torture.run(*small.words(name), *LONGER)
    small.check_message(done)
    passed_over = "passing over it" in done.text and "after step 2" in done.text
    torture.require(done.code == 0 and passed_over, "expected to pass over step-4 and go on from step-2", done)
    torture.require(small.hash_of(name) == small.expected, "the resumed run ended with other weights", done)
    torture.require(not leftovers(small.checkpoints(name)), f"left behind: {leftovers(small.checkpoints(name))}", done)
    small.drop(name)


def wrong_checkpoints(torture, reader, count):
    small, ways = SmallRun(torture), [*SWAPS, *LIES]
    torture.good(*small.words("other", "none"), "trainer.max_steps=4", "seed=1")
    for i in range(count):
        how = ways[i % len(ways)]
        torture.case = f"wrong checkpoint {i}: {how}"
        one_case(torture, small, reader, how)
