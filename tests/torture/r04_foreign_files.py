"""R4: files that were damaged, and files that somebody made to do harm.

A damaged checkpoint, .pt, TorchScript, PNG or gzip file, each of which carries checksums, is refused or gives what the whole one
gives. A hostile file of any kind, and a damaged JPEG, ends in a message, by no signal, and takes no more memory than
docs/security.md states. A checkpoint whose parts do not belong together is refused, and a run goes on from the one before.
"""

import collections
import gzip
import shutil
import struct
import subprocess
import warnings

import foreign_samples
import hostile_files as hostile
from torture import FORBIDDEN, HERE
from wrong_checkpoints import wrong_checkpoints

FLOOR_MIB = 64  # in place of the 256 MiB of the default: the files stay small
SLACK_KIB = 48 << 10  # what the allocator keeps, and the text of the file itself
TIMES = {"pt": 24, "zip": 16, "safetensors": 20, "body_of_manifest": 24, "values": 24, "json": 24, "yaml": 0, "saved_config": 0,
         "idx": 66, "npy": 2, "csv": 26, "image": 66, "mask": 66, "log": 32,
         "checkpoint": 24, "torchscript": 20}
YAML_KIB = 300 << 10  # of a YAML text, whose limits do not depend on its size


class Reader:
    """The process that reads, until it dies."""

    def __init__(self, torture):
        self.torture, self.path, self.process = torture, torture.built("duet_read_foreign"), None
        self.last = 0

    def start(self):
        self.close()
        self.process = subprocess.Popen(
            ["env", f"DUET_FILE_MEMORY={FLOOR_MIB}MiB", self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, bufsize=1)

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def ask(self, kind, path):
        if self.process is None:
            self.start()
        self.process.stdin.write(f"{kind} {path}\n")
        line = self.process.stdout.readline()
        if not line:
            _, text = self.process.communicate()
            code, self.process = self.process.returncode, None
            self.torture.require(False, f"{kind}: the reader ended with {code}", text[-2000:])
        peak, answer, said = line.split(" ", 2) if line.count(" ") > 1 else (*line.split(), "")
        self.torture.require(not FORBIDDEN.search(said), f"{kind}: a message that no user may see", said)
        return int(peak), answer, said.strip()

    def measured(self, kind, path, size):
        """Refused or loaded, within the memory of its kind."""
        before = self.last or self.ask("csv", "/nowhere")[0]
        self.last, answer, said = self.ask(kind, path)
        most = SLACK_KIB + ((FLOOR_MIB << 10) + TIMES[kind] * size // 1024 if TIMES[kind] else YAML_KIB)
        if self.last - before > most:
            self.torture.require(False, f"{kind}: {size} bytes took {self.last - before} KiB, expected at most {most}", said)
        if self.last - before > 32 << 10:  # what it keeps would hide what the next one takes
            self.close()
            self.last = 0
        return answer, said


def damaged(random, content):
    content = bytearray(content)
    for _ in range(random.randint(1, 3)):
        if not content:  # all of a short file is gone
            break
        at, count = random.randrange(len(content)), random.randint(1, 64)
        what = random.randrange(7)
        if what < 2:
            content[at] ^= 1 << random.randrange(8)
        elif what == 2:
            content[at:at + count] = bytes(len(content[at:at + count]))
        elif what == 3:
            del content[at:at + count]
        elif what == 4:
            other = random.randrange(len(content))
            content[at:at] = content[other:other + count]
        elif what == 5:
            content = content[:at] or bytearray(b"x")
        else:
            other = random.randrange(len(content))
            a, b = bytes(content[at:at + count]), bytes(content[other:other + count])
            content[at:at + len(b)], content[other:other + len(a)] = b, a
    return bytes(content)


def samples(torture, reader):
    """(kind, path of the whole thing, the file in it that is damaged)"""
    folder = torture.folder / "samples"
    folder.mkdir()
    _, _, said = reader.ask("samples", folder)
    torture.require((folder / "step-7").is_dir(), "no samples", said)
    pixels = bytes(range(256)) * 8
    (folder / "images.gz").write_bytes(gzip.compress(b"\0\0\x08\3" + struct.pack(">III", 8, 16, 16) + pixels, mtime=0))
    found = [("image", folder / "picture.png", ""), ("idx", folder / "images.gz", ""), ("pt", folder / "ours.pt", "")]
    if foreign_samples.torchscript(folder / "program.pt"):
        found.append(("torchscript", folder / "program.pt", ""))
    else:
        torture.left_out.append("TorchScript (needs PyTorch to make it)")
    found += [("checkpoint", folder / "step-7", path.name) for path in sorted((folder / "step-7").iterdir())]
    for name in ("state_dict.pt", "mmengine.pth", "protocol4.pt", "tied.pt", "compressed.pt"):
        shutil.copy(HERE.parent / "io" / "pt_files" / name, folder / name)
        found.append(("zip" if name == "compressed.pt" else "pt", folder / name, ""))
    return found


def damage(torture, reader, places, count):
    whole = {path: reader.ask(kind, path) for kind, path, _ in places}
    for path, (_, answer, said) in whole.items():
        torture.require(answer == "loaded", f"{path.name} is not read", said)
    counts = collections.Counter()
    for i in range(count):
        torture.case = f"damaged file {i}"
        kind, path, inner = places[i % len(places)]
        content = (path / inner if inner else path).read_bytes()
        changed = damaged(torture.random, content)
        target = torture.folder / f"damaged{path.suffix}"
        if inner:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(path, target)
            (target / inner).write_bytes(changed)
        else:
            target.unlink(missing_ok=True)
            target.write_bytes(changed)
        answer, said = reader.measured(kind, target, len(changed))
        counts[answer] += 1
        torture.require(answer == "refused" or said == whole[path][2],
                        f"a wrong load of {path.name} {inner}: {kind}", said)
    return counts


def hostile_file(random, programs):
    """Its kind, and the file; `programs`: whole ones of TorchScript."""
    if random.random() < 0.1:
        kind = random.choice(("image", "mask"))
        whole = foreign_samples.jpeg(random.randint(1, 200), random.randint(1, 200), random.choice((0xC0, 0xC2)))
        return kind, random.choice((foreign_samples.hostile_jpeg(random), damaged(random, whole)))
    if programs and random.random() < 0.05:
        return "torchscript", foreign_samples.hostile_torchscript(random, random.choice(programs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an archive with two entries of one name
        return hostile.one(random)


def harm(torture, reader, programs, count):
    refused = 0
    for i in range(count):
        torture.case = f"hostile file {i}"
        kind, content = hostile_file(torture.random, programs)
        path = torture.folder / "hostile"
        path.write_bytes(content)
        answer, _ = reader.measured(kind, path, len(content))
        refused += answer == "refused"
        if kind in ("pt", "safetensors") and i % 5 == 0:  # the program itself
            named = path.rename(torture.folder / f"hostile.{kind}")
            done = torture.run("export", named, "exported.pt", DUET_FILE_MEMORY=f"{FLOOR_MIB}MiB")
            torture.require(done.code in (0, 2, 4) and not FORBIDDEN.search(done.text), "expected a message", done)
    return refused


def run(torture):
    reader = Reader(torture)
    files, hostiles, wrong = torture.count(400, 10_000), torture.count(50, 1000), torture.count(10, 500)
    try:
        places = samples(torture, reader)
        counts = damage(torture, reader, places, files)
        refused = harm(torture, reader, [path.read_bytes() for kind, path, _ in places if kind == "torchscript"], hostiles)
        wrong_checkpoints(torture, reader, wrong)
    finally:
        reader.close()
    return (f"{sum(counts.values())}/{files} detected, 0 wrong loads ({counts['refused']} refused, {counts['loaded']} damaged where "
            f"nothing is read); {hostiles}/{hostiles} hostile files within their memory, {refused} refused; {wrong}/{wrong} wrong "
            "checkpoints refused, and the ones before went on to the same end")
