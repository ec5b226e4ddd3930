"""Whole files of kinds that need no other library to make, and TorchScript programs where there is PyTorch."""

import io
import struct
import subprocess
import zipfile

from torture import TORCH_PYTHON


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def scan(first=0, last=63, data=b""):
    return segment(0xDA, bytes([1, 1, 0, first, last, 0])) + data


def jpeg(width, height, frame=0xC0, scans=None):
    """A grey picture; each table holds one code of one bit, so that zeros are blocks without differences."""
    tables = segment(0xDB, b"\0" + bytes([1]) * 64)
    tables += b"".join(segment(0xC4, bytes([kind, 1]) + bytes(16)) for kind in (0x00, 0x10))
    blocks = -(-width // 8) * -(-height // 8)
    scans = scan(data=bytes(-(-blocks * 2 // 8))) if scans is None else scans
    return b"\xFF\xD8" + tables + segment(frame, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0") + scans + b"\xFF\xD9"


def hostile_jpeg(random):
    """Far larger inside than outside, or endless."""
    side = random.choice([5000, 16_000, 65_500])
    return random.choice([
        lambda: jpeg(side, side, scans=scan(data=bytes(100))),
        lambda: jpeg(side, side, frame=0xC2, scans=scan(last=0, data=bytes(100))),
        lambda: jpeg(64, 64, frame=0xC2, scans=scan(last=0, data=bytes(16)) * random.choice([10, 600, 60_000])),
        lambda: jpeg(5000, 5000, frame=0xC2, scans=scan(last=0) + scan(first=1, last=63) * 600),
        lambda: jpeg(8, 8, scans=segment(0xE1, bytes(65_000)) * random.choice([1, 300])),
        lambda: jpeg(8, 8, scans=b"\xFF" * random.choice([10, 1_000_000])),
        lambda: jpeg(8, 8) + bytes(random.choice([1, 3_000_000])),
    ])()


TORCHSCRIPT = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
torch.jit.script(net).save(sys.argv[1])
"""


def torchscript(path):
    """False where there is no PyTorch to make it with."""
    return subprocess.run([TORCH_PYTHON, "-c", TORCHSCRIPT, path], capture_output=True, check=False).returncode == 0


def hostile_torchscript(random, whole):
    """Its program is whole; what the archive says of itself is not."""
    made, packed = io.BytesIO(), random.random() < 0.5
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry), method)
        root = old.namelist()[0].split("/")[0]
        for number in range(random.choice([1, 10, 20_000])):
            content = bytes(random.choice([0, 30_000_000]) if number < 3 else 0)
            new.writestr(zipfile.ZipInfo(f"{root}/extra/{number}"), content, zipfile.ZIP_DEFLATED)
    content = made.getvalue()
    if random.random() < 0.3:
        at = content.rindex(b"PK\5\6") + random.choice([8, 10, 12, 16])
        content = content[:at] + struct.pack("<I", random.choice([0, 0xFFFF, 0xFFFFFFFF, random.getrandbits(32)])) + content[at + 4:]
    return content
