"""Files that a fuzzer starts from: whole ones of every kind, and hostile ones."""

import base64
import functools
import gzip
import io
import pathlib
import random
import struct
import sys
import zipfile
import zlib

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "torture"), str(TESTS / "cli")]

import hostile_files as hostile  # noqa: E402
import run_folders  # noqa: E402

MOST_BYTES = 16 << 10  # of a seed: a fuzzer is slow with long ones


# 9 x 7 pixels as libjpeg writes them: baseline, progressive, and grey with restart markers.
JPEGS = [
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBkeFxlZ2P/"
    "2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAHAAkDASIAAhEBAxEB/8QA"
    "FQABAQAAAAAAAAAAAAAAAAAAAAH/xAAkEAAABAUDBQAAAAAAAAAAAAABAgMRAAQFEiETFGEiUVSj0f/EABQBAQAAAAAAAAAAAAAAAAAAAAH/xAAZEQADAAMA"
    "AAAAAAAAAAAAAAAAAhEBITH/2gAMAwEAAhEDEQA/AIppUJJOWl0wPPKkuK4dKZXa4e44Fg4zzd1XvP8AWn8hCFkVu4oXUP/Z",
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBkeFxlZ2P/"
    "2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2P/wgARCAAHAAkDASIAAhEBAxEB/8QA"
    "FQABAQAAAAAAAAAAAAAAAAAAAAH/xAAVAQEBAAAAAAAAAAAAAAAAAAAAAf/aAAwDAQACEAMQAAABlE//xAAYEAACAwAAAAAAAAAAAAAAAAABAwAREv/aAAgB"
    "AQABBQI0gafP/8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAwEBPwF//8QAFREBAQAAAAAAAAAAAAAAAAAAAQD/2gAIAQIBAT8BQb//xAAZEAACAwEAAAAA"
    "AAAAAAAAAAAAAQIioTL/2gAIAQEABj8CUYq7w7xH/8QAGBAAAgMAAAAAAAAAAAAAAAAAAVEQESH/2gAIAQEAAT8h0AFYQOOf/9oADAMBAAIAAwAAABCP/8QA"
    "FhEBAQEAAAAAAAAAAAAAAAAAEQAh/9oACAEDAQE/EHC//8QAFxEAAwEAAAAAAAAAAAAAAAAAAAERMf/aAAgBAgEBPxDUVP/EABwQAAICAgMAAAAAAAAAAAAA"
    "AAERIWEAMVHR8P/aAAgBAQABPxBOk2DYTcmChU349Gf/2Q==",
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBkeFxlZ2P/"
    "wAALCAAHAAkBAREA/8QAFQABAQAAAAAAAAAAAAAAAAAAAgX/xAAbEAACAQUAAAAAAAAAAAAAAAAAAgQGFiEiUv/dAAQAAf/aAAgBAQAAPwBQKVTGqn//0K9q"
    "pyp//9k=",
]
PNG_KINDS = [(4, 4, 8, 2), (12, 4, 8, 0), (6, 4, 16, 0), (3, 4, 8, 6), (6, 4, 8, 4)]  # width, height, depth, colours


def chunk(name, content):
    """As foreign_readers.cpp takes it."""
    return struct.pack(">H", len(content)) + name + content


def pictures():
    """Whole files, and the chunks of a PNG."""
    rows = b"".join(b"\0" + bytes(range(12)) for _ in range(4))
    whole_files = [hostile.png(width, height, rows, depth, colors) for width, height, depth, colors in PNG_KINDS]
    in_chunks = []
    for interlaced in (0, 1):
        for width, height, depth, colors in [*PNG_KINDS, (12, 4, 8, 3), (96, 4, 1, 3)]:
            head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, interlaced))
            palette = chunk(b"PLTE", bytes(range(36))) if colors == 3 else b""
            texts = chunk(b"tRNS", b"\1\2") + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"b" * 99))
            in_chunks.append(head + palette + (texts if colors == 0 else b"") + chunk(b"IDAT", rows * (1 + interlaced)))
    return whole_files + in_chunks + [base64.b64decode(text) for text in JPEGS]


def npy(descr, order, shape):
    head = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + bytes(48)


def idx():
    plain = b"\0\0\x08\3" + struct.pack(">III", 2, 3, 4) + bytes(range(24))
    floats = b"\0\0\x0d\1" + struct.pack(">I", 2) + struct.pack(">ff", 1, -2)
    return [plain, floats, gzip.compress(plain, mtime=0), b"g" + plain, b"g" + floats]


def logs():
    histogram = b'{"kind":"histogram","weights/a":{"counts":[1,2],"edges":[0,1,2]},"b":{"counts":[3],"min":0,"max":1},"step":2}\n'
    others = b'{"kind":"epoch","epoch_time":1.5,"step":3}\n{"kind":"void","step":2,"last_step":9}\n' \
             b'{"kind":"error","error":"x","step":4,"loss":"nan"}\n'
    return ["\n".join(run_folders.log_lines(20)).encode(), histogram + others, b'{"kind":"train","loss":"-inf","step":1}\n{"kin']


def of_archives():
    files = [path.read_bytes() for path in sorted((TESTS / "io" / "pt_files").iterdir())]
    pickles = []
    for file in files:
        if zipfile.is_zipfile(io.BytesIO(file)):
            archive = zipfile.ZipFile(io.BytesIO(file))
            pickles += [archive.read(name) for name in archive.namelist() if name.endswith(".pkl")]
    return files, pickles


def of_exported():
    """Files of torch.export, and their programs and lists of tensors (after a 'w')."""
    files = [path.read_bytes() for path in sorted((TESTS / "io" / "pt2_files").iterdir())]
    parts = []
    for file in files:
        archive = zipfile.ZipFile(io.BytesIO(file))
        parts += [archive.read(name) for name in archive.namelist() if name.endswith("model.json")]
        parts += [b"w" + archive.read(name) for name in archive.namelist() if name.endswith("config.json")]
    return files, parts


def of_checkpoints():
    """Bodies of manifests, and values."""
    folders = [path.parent for path in sorted((TESTS / "checkpoint" / "released").rglob("manifest.json"))]
    bodies = [(folder / "manifest.json").read_bytes().rpartition(b',\n  "manifest_xxh3"')[0] for folder in folders]
    return bodies, [(folder / "state.json").read_bytes() for folder in folders]


def whole():
    """Kind -> files that are read."""
    configs = [path.read_bytes() for path in sorted((TESTS.parent / "examples").rglob("*.yaml"))]
    archives, pickles = of_archives()
    exported, programs = of_exported()
    bodies, values = of_checkpoints()
    header = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},' \
             b'"b":{"dtype":"BOOL","shape":[],"data_offsets":[24,25]}}'
    return {
        "csv": [b"a,b\n1,2\n3,x\n", b'\xef\xbb\xbf"a ""b""",c\r\n"1\n2",\r\n'],
        "idx": idx(), "image": pictures(), "mask": pictures(),
        "log": logs(),
        "json": [b'{"a": [1, 2.5e3, -0, true, null, "x\\u00e9\\n"], "b": {}}'] + values, "values": values, "manifest": bodies,
        "npy": [npy("<f4", "False", "(3, 4)"), npy("|u1", "True", "(2, 2, 2)"), npy(">i8", "False", "(6,)"), npy("|b1", "False", "()")],
        "pickle": pickles, "pt": archives, "pt2": exported, "pt2_program": programs, "zip": archives,
        "safetensors": [hostile.safetensors(header, bytes(25))], "safetensors_header": [header],
        "yaml": configs, "saved_config": configs,
    }


@functools.cache
def hostiles(count=200):
    """(kind, short hostile file)"""
    generator = random.Random(1)
    made = [hostile.one(generator) for _ in range(count)]
    return [(kind, content) for kind, content in made if len(content) <= MOST_BYTES]


def seeds(kind):
    """Different files of the kind, short ones alone."""
    generator = random.Random(1)
    found = list(whole()[kind])
    if kind == "pickle":
        found += [b"\x80\x02" + pickle + b"." for pickle in hostile.pickles(generator)]
    elif kind == "safetensors_header":
        found += [hostile.safetensors(header)[8:] for header in hostile.headers(generator)]
    wanted = "body_of_manifest" if kind == "manifest" else kind
    found += [content for made, content in hostiles() if made == wanted]
    return sorted({content for content in found if 0 < len(content) <= MOST_BYTES})
