"""Checkpoints whose files are whole, or nearly, but do not belong together: part of R4."""

import json
import os
import shutil

from small_run import LONGER, SmallRun
from torture import leftovers

FILES = ("model.safetensors", "state.safetensors", "state.json", "manifest.json")
DATA_FILES = FILES[:3]


def edited(reader, folder, edit):
    """The manifest after edit(document), with the right hash of itself."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    document.pop("manifest_xxh3")
    edit(document)
    path.write_text(json.dumps(document, indent=2).removesuffix("\n}"))
    reader.ask("body_of_manifest", path)


def other_digit(random, entry):
    at = random.randrange(len(entry["xxh3"]))
    old = entry["xxh3"]
    entry["xxh3"] = old[:at] + random.choice(sorted(set("0123456789abcdef") - {old[at]})) + old[at + 1:]


class Places:
    """The checkpoints that a wrong one is made of."""

    def __init__(self, small, name, reader):
        self.random, self.reader = small.torture.random, reader
        self.newest, self.before = (small.checkpoints(name) / f"step-{step}" for step in (4, 2))
        self.other = small.checkpoints("other") / "step-4"

    def any_file(self, files=FILES):
        return self.newest / self.random.choice(files)

    def swap(self, source, files):
        for file in files:
            shutil.copy(source / file, self.newest / file)

    def exchange(self):
        a, b = (self.newest / file for file in self.random.sample(DATA_FILES, 2))
        kept = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(kept)

    def edit(self, change):
        """`change` the manifest, which then has the right hash of itself."""
        edited(self.reader, self.newest, change)

    def entry(self, document, kind):
        return self.random.choice(document[kind])

    def move_a_tensor(self, document):
        tensor, key = self.entry(document, "tensors"), self.random.choice(("offset", "bytes"))
        tensor[key] = self.random.choice((tensor[key] + 4, 2**63, 2**64 - 1, 0 if tensor[key] else 8))

    def replace(self, how):
        path = self.any_file()
        path.unlink()
        how(path)


# What is wrong -> how it becomes so.
WAYS = {
    "a file of the step before": lambda at: at.swap(at.before, [at.random.choice(DATA_FILES)]),
    "a file of another run": lambda at: at.swap(at.other, [at.random.choice(DATA_FILES)]),
    "all but the manifest": lambda at: at.swap(at.random.choice((at.before, at.other)), DATA_FILES),
    "the manifest of the step before": lambda at: at.swap(at.before, ["manifest.json"]),
    "all of the step before": lambda at: at.swap(at.before, FILES),
    "two files exchanged": Places.exchange,
    "the format of another version": lambda at: at.edit(
        lambda document: document.update(format=at.random.choice((0, 2, 99, -1, "1", 1.5, None, [], 2**63)))),
    "the step of another": lambda at: at.edit(lambda document: document.update(step=at.random.choice((0, 2, 5, -4, 2**62, "4")))),
    "the hash of a file": lambda at: at.edit(lambda document: other_digit(at.random, at.entry(document, "files"))),
    "the hash of a tensor": lambda at: at.edit(lambda document: other_digit(at.random, at.entry(document, "tensors"))),
    "a file not listed": lambda at: at.edit(lambda document: document["files"].remove(at.entry(document, "files"))),
    "a file from elsewhere": lambda at: at.edit(lambda document: at.entry(document, "files").update(
        name=at.random.choice(("../step-2/state.json", "/etc/passwd", "", ".")))),
    "a tensor out of its place": lambda at: at.edit(at.move_a_tensor),
    "a file gone": lambda at: at.any_file().unlink(),
    "a file emptied": lambda at: at.any_file().write_bytes(b""),
    "a file cut": lambda at: (path := at.any_file()) and os.truncate(path, at.random.randrange(path.stat().st_size)),
    "a folder for a file": lambda at: at.replace(lambda path: path.mkdir()),
    "a link to itself": lambda at: at.replace(lambda path: path.symlink_to(path)),
}


def one_case(torture, small, reader, how):
    """The wrong one is refused and passed over; the one before goes on to the unbroken end."""
    name = small.copy()
    WAYS[how](Places(small, name, reader))
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
    small = SmallRun(torture)
    torture.good(*small.words("other", "none"), "trainer.max_steps=4", "seed=1")
    for i in range(count):
        how = list(WAYS)[i % len(WAYS)]
        torture.case = f"wrong checkpoint {i}: {how}"
        one_case(torture, small, reader, how)
