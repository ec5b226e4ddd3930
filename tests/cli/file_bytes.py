"""Files of formats that scripts write as the bytes that they are."""

import json
import struct
import zlib


def idx(shape, payload):
    """Of bytes."""
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + payload


def safetensors(tensors):
    """Of name: (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(descr, shape, values):
    header = str({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + values


def png_chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, rows, depth=8, colors=0, before=b""):
    """`colors` 2: RGB, 0: grey; `rows` with their filters, `before`: chunks before the pixels."""
    head = struct.pack(">IIBBBBB", width, height, depth, colors, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + before + png_chunk(b"IDAT", zlib.compress(rows, 9)) + png_chunk(b"IEND", b"")


def picture(width, height, pixels, colors=2):
    """Of one byte per level, row by row."""
    size = width * (3 if colors == 2 else 1)
    return png(width, height, b"".join(b"\0" + pixels[y * size:(y + 1) * size] for y in range(height)), colors=colors)
