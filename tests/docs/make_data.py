#!/usr/bin/env python3
"""Writes small data of the kinds that the docs speak of into the working folder, with the standard library alone:
pictures/<class>/*.png, for each class named, and table.csv.

usage: make_data.py CLASS...
"""

import pathlib
import random
import struct
import sys
import zlib


def png(side, pixels):
    rows = b"".join(b"\0" + pixels[y * side * 3:(y + 1) * side * 3] for y in range(side))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main():
    numbers = random.Random(0)
    for place, kind in enumerate(sys.argv[1:]):
        folder = pathlib.Path("pictures", kind)
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(20):
            side = numbers.choice((36, 40))
            pixels = bytes(numbers.randrange(60) + 190 * (c == place % 3) for _ in range(side * side) for c in range(3))
            (folder / f"{i:02}.png").write_bytes(png(side, pixels))
    with open("table.csv", "w", encoding="utf-8") as file:
        file.write("width,height,colour,price\n")
        for _ in range(100):
            width, height, colour = numbers.uniform(1, 9), numbers.uniform(1, 9), numbers.choice(("red", "green", "blue"))
            file.write(f"{width:.3f},{height:.3f},{colour},{3 * width - height + (colour == 'red'):.3f}\n")


if __name__ == "__main__":
    main()
