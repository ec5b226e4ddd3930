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
        torture = small.torture
        self.random, self.reader = torture.random, reader
        self.newest, self.before = (small.checkpoints(name) / f"step-{step}" for step in (4, 2))
        self.other = small.checkpoints("other") / "step-4"

    def swap(self, source, files):
        for file in files:
            shutil.copy(source / file, self.newest / file)

    def one_of_the_step_before(self):
        self.swap(self.before, [self.random.choice(DATA_FILES)])

    def one_of_another_run(self):
        self.swap(self.other, [self.random.choice(DATA_FILES)])

    def all_but_the_manifest(self):
        self.swap(self.random.choice((self.before, self.other)), DATA_FILES)

    def manifest_of_the_step_before(self):
        self.swap(self.before, ["manifest.json"])

    def all_of_the_step_before(self):
        self.swap(self.before, FILES)

    def two_files_exchanged(self):
        a, b = (self.newest / file for file in self.random.sample(DATA_FILES, 2))
        kept = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(kept)

    def format_of_another_version(self):
        value = self.random.choice((0, 2, 99, -1, "1", 1.5, None, [], 2**63))
        edited(self.reader, self.newest, lambda document: document.update(format=value))

    def step_of_another(self):
        edited(self.reader, self.newest, lambda document: document.update(step=self.random.choice((0, 2, 5, -4, 2**62, "4"))))

    def hash_of_a_file(self):
        edited(self.reader, self.newest, lambda document: other_digit(self.random, self.random.choice(document["files"])))

    def hash_of_a_tensor(self):
        edited(self.reader, self.newest, lambda document: other_digit(self.random, self.random.choice(document["tensors"])))

    def file_not_listed(self):
        edited(self.reader, self.newest, lambda document: document["files"].pop(self.random.randrange(len(document["files"]))))

    def file_from_elsewhere(self):
        def lead_out(document):
            self.random.choice(document["files"])["name"] = self.random.choice(("../step-2/state.json", "/etc/passwd", "", "."))
        edited(self.reader, self.newest, lead_out)

    def tensor_out_of_its_place(self):
        def move(document):
            tensor = self.random.choice(document["tensors"])
            key = self.random.choice(("offset", "bytes"))
            tensor[key] = self.random.choice((tensor[key] + 4, 2**63, 2**64 - 1, 0 if tensor[key] else 8))
        edited(self.reader, self.newest, move)

    def file_gone(self):
        (self.newest / self.random.choice(FILES)).unlink()

    def file_emptied(self):
        (self.newest / self.random.choice(FILES)).write_bytes(b"")

    def file_cut(self):
        path = self.newest / self.random.choice(FILES)
        os.truncate(path, self.random.randrange(path.stat().st_size))

    def folder_for_a_file(self):
        path = self.newest / self.random.choice(FILES)
        path.unlink()
        path.mkdir()

    def link_to_itself(self):
        path = self.newest / self.random.choice(FILES)
        path.unlink()
        path.symlink_to(path)


WAYS = [name for name, member in vars(Places).items() if callable(member) and name not in ("__init__", "swap")]


def one_case(torture, small, reader, how):
    """The wrong one is refused and passed over; the one before goes on to the unbroken end."""
    name = small.copy()
    getattr(Places(small, name, reader), how)()
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
        how = WAYS[i % len(WAYS)]
        torture.case = f"wrong checkpoint {i}: {how.replace('_', ' ')}"
        one_case(torture, small, reader, how)
