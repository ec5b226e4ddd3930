"""R4: files that were damaged, and files that somebody made to do harm.

A damaged checkpoint, .pt, TorchScript, PNG or gzip file, each of which carries checksums, is refused or gives what the whole one
gives. A hostile file of any kind, and a damaged JPEG, ends in a message, by no signal, and takes no more memory than
docs/security.md states. A checkpoint whose parts do not belong together is refused, and a run goes on from the one before.
"""

import collections
import gzip
import io
import shutil
import struct
import subprocess
import zipfile

import hostile_files as hostile
from torture import FORBIDDEN, HERE, TORCH_PYTHON
from wrong_checkpoints import wrong_checkpoints

FLOOR_MIB = 64  # in place of the 256 MiB of the default: the files stay small
SLACK_KIB = 48 << 10  # what the allocator keeps, and the text of the file itself
TIMES = {"pt": 24, "zip": 16, "safetensors": 20, "body_of_manifest": 24, "values": 24, "json": 24, "yaml": 0, "saved_config": 0,
         "idx": 66, "npy": 2, "csv": 26, "image": 66, "mask": 66, "log": 32,
         "checkpoint": 24, "torchscript": 20}
YAML_KIB = 300 << 10  # of a YAML text, whose limits do not depend on its size


class Reader:
    """The process that reads, and the most memory that it has taken so far."""

    def __init__(self, torture):
        self.torture, self.process, self.last = torture, None, 0

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process, self.last = None, 0

    def ask(self, kind, path):
        if self.process is None:
            self.process = subprocess.Popen(
                ["env", f"DUET_FILE_MEMORY={FLOOR_MIB}MiB", self.torture.built("duet_read_foreign")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.process.stdin.write(f"{kind} {path}\n")
        line = self.process.stdout.readline()
        if not line:
            _, text = self.process.communicate()
            self.torture.require(False, f"{kind}: the reader ended with {self.process.returncode}", text[-2000:])
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
        return answer, said


def damaged(random, content):
    """Bits flipped; parts zeroed, gone, or with others in their place; its end gone."""
    content = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at, other = random.randrange(len(content) or 1), random.randrange(len(content) or 1)
        end, what = at + random.randint(1, 64), random.randrange(7)
        if what < 2 and content:
            content[at] ^= 1 << random.randrange(8)
        elif what < 6:
            content[at:end] = (b"", bytes(len(content[at:end])), content[other:other + 64])[what % 3]
        else:
            del content[at:]
    return bytes(content)


TORCHSCRIPT = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
torch.jit.script(net).save(sys.argv[1])
"""


def hostile_torchscript(random, whole):
    """Its program is whole; what the archive says of itself is not."""
    made, method = io.BytesIO(), random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry), method)
        root = old.namelist()[0].split("/")[0]
        for number in range(random.choice([1, 10, 20_000])):
            content = bytes(random.choice([0, 30_000_000]) if number < 3 else 0)
            new.writestr(zipfile.ZipInfo(f"{root}/extra/{number}"), content, zipfile.ZIP_DEFLATED)
    content = bytearray(made.getvalue())
    if random.random() < 0.3:  # its directory
        at = content.rindex(b"PK\5\6") + random.choice([8, 10, 12, 16])
        content[at:at + 4] = struct.pack("<I", random.choice([0, 0xFFFF, 0xFFFFFFFF, random.getrandbits(32)]))
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
    script = [TORCH_PYTHON, "-c", TORCHSCRIPT, folder / "program.pt"]
    if subprocess.run(script, capture_output=True, check=False).returncode == 0:
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
    chance = random.random()
    if chance < 0.05:
        whole = hostile.jpeg(random.randint(1, 200), random.randint(1, 200), random.choice((0xC0, 0xC2)))
        return random.choice(("image", "mask")), damaged(random, whole)
    if programs and chance < 0.1:
        return "torchscript", hostile_torchscript(random, random.choice(programs))
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
