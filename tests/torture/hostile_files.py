"""Files that somebody made to do harm: deep, endless, or far larger inside than outside."""

import functools
import gzip
import io
import json
import struct
import warnings
import zipfile
import zlib

from file_bytes import png, png_chunk


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def archive(entries, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as zipped:
        for name, content in entries:
            zipped.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def view(sizes, strides, storage="0", elements=4):
    def numbers(values):
        return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"
    key = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(storage) + text("cpu") + b"J" + struct.pack("<i", elements) + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + key + b"K\0" + numbers(sizes) + numbers(strides) + b"\x89}tR"


def pt(pickle, storage=bytes(16)):
    return archive([("a/data.pkl", b"\x80\x02" + pickle + b"."), ("a/data/0", storage)])


def nested(random, begin, end, most=300_000):
    depth = random.choice([65, 100, 1000, 10_000, most])
    return begin * depth + end * depth


@functools.cache
def packed_zeros(count):
    return zlib.compress(bytes(count), 9)


def texts(counts):
    """Chunks of as many zeros each, packed."""
    return b"".join(png_chunk(b"zTXt", b"k\0\0" + packed_zeros(count)) for count in counts)


def laughs(random):
    count, lines = random.randint(6, 40), ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, count)]
    return "\n".join(lines).encode()


def pickles(random):
    times = random.choice([10_000, 300_000, 2_000_000])
    yield b"}" + random.choice([b"(", b")", b"]", b"N", b"N\x94", b"}", b"K\1", b"\x88", b"]q\0"]) * times
    yield b"}" + text("a") + b"]" * times + b"a" * (times - 1) + b"s"
    yield b"}q\0" + text("a") + b"h\0s"
    lists = b"}" + text("0") + b"]q\0s"
    for i in range(1, random.randint(5, 40)):
        lists += text(str(i)) + b"](" + (b"h" + bytes([i - 1])) * 10 + b"eq" + bytes([i]) + b"s"
    yield lists
    yield b"}(" + b"".join(text(f"t{i}") + view([1 << random.randint(20, 40)], [0]) for i in range(random.randint(1, 20))) + b"u"
    yield b"}" + text("t") + view([1 << 62, 4, 0], [0, 0, 0]) + b"s"
    yield b"}" + text("t") + view([2, 2], [1 << 62, -1]) + b"s"
    yield b"c_codecs\nencode\nq\0" + text("x" * 65536) + b"\x85q\1" + b"h\0h\1R" * random.choice([100, 100_000])
    yield b"\x8e" + struct.pack("<Q", 1 << random.randint(30, 63)) + b"x"
    name = text("k" * random.choice([1000, 1_000_000]))
    yield b"}" + name + b"}(" + b"NN" * random.choice([100, 3000]) + b"us"
    yield b"}(" + name + b"q\0}q\1" + b"h\0h\1" * random.choice([100, 3000]) + b"u"
    yield b"cposix\nsystem\n" + text("true") + b"\x85R"


def headers(random):
    four = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    many = random.choice([1000, 100_000, 2_000_000])
    yield nested(random, b'{"a":', b"}")
    yield b'{"a":' + nested(random, b"[", b"]") + b"}"
    yield b'{"a":{"dtype":"F32","shape":[' + b"0," * many + b'0],"data_offsets":[0,0]}}'
    yield b'{"a":[' + b"[]," * many + b"0]}"
    yield b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(many // 10)) + b"}}"
    yield b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(many // 20)) + b',"0":{}}'
    yield json.dumps({"a": {**four, "shape": [1 << random.randint(20, 62)] * random.randint(1, 4)}}).encode()
    yield b'{"\\u001b[2J' + b"x" * many + b'":1}'
    yield b'{"a":{"dtype":"' + b"\x7f" * many + b'"}}'


def csv(random):
    many = random.choice([10_000, 1_000_000])
    yield b"a,b\n" + b",\n" * many
    yield b"," * many
    yield b"a\n\"" + b"x" * many
    yield b"a\n" + b"\n1" * many
    yield b"x" * many + b"\n1\n"
    yield b",".join(b"%d" % i for i in range(17)) + (b"\n" + b"," * 16) * (many // 10)


def logs(random):
    many = random.choice([1000, 300_000])
    names = b",".join(b'"%d":1' % i for i in range(many))
    yield b'{"kind":"train","step":1,' + names + b"}\n"
    yield b'{"kind":"text",' + names.replace(b":1", b':""') + b"}\n"
    yield b'{"kind":"train","a":' + nested(random, b"[", b"]")
    yield b'{"kind":"train","step":1,"loss":1}' + b" " * random.choice([1000, 40_000_000]) + b"\n"
    yield b"".join(b'{"kind":"train","a":1,"step":%d}\n{"kind":"void","step":%d}\n' % (i, i // 2) for i in range(many // 10))
    yield b'{"kind":"histogram","h":{"counts":[' + b"0," * many + b'0],"min":0,"max":1}}\n'
    yield b"\n" * many + b"{}\n" * many


def manifests(random):
    yield from (b'{\n  "format": 1,\n  "x": ' + body for body in jsons(random))


def jsons(random):
    yield nested(random, b"[", b"]")
    yield nested(random, b'{"a":', b"}")
    yield b"[" + b"{}," * 500_000 + b"0]"
    yield b'["' + b"x" * 1_000_000
    yield b"[" + b"0," * 1_000_000 + b"0]"


def yamls(random):
    yield laughs(random)
    yield b"a: &a [*a]\n"
    yield b"a: " + nested(random, b"[", b"]", 20_000)
    yield b"a: " + nested(random, b"{b: ", b"}", 20_000)
    yield b"- " * random.choice([100, 10_000]) + b"a\n"
    yield random.choice([b"[", b"{"]) * random.choice([1_000_000, 8_000_000])
    yield b"a: [" + b"0," * 200_000 + b"0]\n"
    yield b"a: &a " + b"x" * 1_000_000 + b"\nb: [" + b"*a," * 10_000 + b"*a]\n"
    key = b"k" * random.choice([1000, 1_000_000, 8_000_000])
    yield b"? " + key + b"\n: [" + b"{x: 1}, " * random.choice([10, 4000]) + b"1]\n"


def idxs(random):
    shape = [random.choice([0, 1, 28, 1 << 16, 1 << 31, (1 << 32) - 1]) for _ in range(random.randint(1, 16))]
    head = bytes([0, 0, random.choice([8, 9, 11, 12, 13, 14]), len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
    yield gzip.compress(head + bytes(random.choice([0, 100, 10_000_000])), 9, mtime=0)
    size = 30_000_000 + random.randrange(1000)
    yield gzip.compress(b"\0\0\x08\1" + struct.pack(">I", size) + bytes(size), 9, mtime=0)


def npys(random):
    shape = ", ".join(str(random.choice([0, 1, 3, 1 << 20, 1 << 62])) for _ in range(random.randint(1, 40)))
    head = f"{{'descr': '<f4', 'fortran_order': {random.choice(['True', 'False'])}, 'shape': ({shape},), }}".encode()
    yield b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + bytes(16)


def pngs(random):
    side = random.choice([5000, 100_000, 1_000_000, (1 << 31) - 1])
    yield png(side, random.choice([1, side]), bytes(1000), random.choice([1, 8, 16]))
    yield png(9000, 9000, bytes((9000 // 8 + 1) * 9000), 1)
    yield png(4, 4, bytes(20), before=texts([7_900_000] * random.choice([1, 10, 90])))


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


def jpegs(random):
    side = random.choice([5000, 16_000, 65_500])
    yield jpeg(side, side, scans=scan(data=bytes(100)))
    yield jpeg(side, side, frame=0xC2, scans=scan(last=0, data=bytes(100)))
    yield jpeg(64, 64, frame=0xC2, scans=scan(last=0, data=bytes(16)) * random.choice([10, 600, 60_000]))
    yield jpeg(5000, 5000, frame=0xC2, scans=scan(last=0) + scan(first=1, last=63) * 600)
    yield jpeg(8, 8, scans=segment(0xE1, bytes(65_000)) * random.choice([1, 300]))
    yield jpeg(8, 8, scans=b"\xFF" * random.choice([10, 1_000_000]))
    yield jpeg(8, 8) + bytes(random.choice([1, 3_000_000]))


def archives(random):
    yield archive([("a/data.pkl", bytes(random.choice([1000, 30_000_000])))] * random.choice([1, 2]), zipfile.ZIP_DEFLATED)


# Kinds of file, and what makes the contents of such files.
MAKERS = [
    (("pt",), lambda random: map(pt, pickles(random))),
    (("zip", "pt"), archives),
    (("safetensors",), lambda random: map(safetensors, headers(random))),
    (("body_of_manifest",), manifests),
    (("json", "values"), jsons),
    (("yaml", "saved_config"), yamls),
    (("idx",), idxs),
    (("npy",), npys),
    (("image", "mask"), pngs),
    (("image", "mask"), jpegs),
    (("csv",), csv),
    (("log",), logs),
]


def one(random):
    """A kind, and a file of that kind."""
    kinds, make = random.choice(MAKERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an archive with two entries of one name
        return random.choice(kinds), random.choice(list(make(random)))
