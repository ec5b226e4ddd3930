#!/usr/bin/env python3
"""Writes small data of the kinds that the docs speak of into the working folder, with the standard library alone:
pictures/<class>/*.png, for each class named, scenes/*.png with masks/*.png of three classes, and table.csv.

usage: make_data.py CLASS...
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from file_bytes import picture  # noqa: E402


def main():
    numbers = random.Random(0)
    for place, kind in enumerate(sys.argv[1:]):
        folder = pathlib.Path("pictures", kind)
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(20):
            side = numbers.choice((36, 40))
            pixels = bytes(numbers.randrange(60) + 190 * (c == place % 3) for _ in range(side * side) for c in range(3))
            (folder / f"{i:02}.png").write_bytes(picture(side, side, pixels))
    for folder in ("scenes", "masks"):
        pathlib.Path(folder).mkdir(exist_ok=True)
    colours = ((30, 30, 30), (220, 40, 40), (40, 220, 40))
    for i in range(20):
        left = numbers.randrange(24)
        mask = bytes(1 + i % 2 if left <= x < left + 16 and 8 <= y < 24 else 0 for y in range(40) for x in range(40))
        pathlib.Path("masks", f"{i:02}.png").write_bytes(picture(40, 40, mask, 0))
        pathlib.Path("scenes", f"{i:02}.png").write_bytes(picture(40, 40, bytes(v for c in mask for v in colours[c])))
    with open("table.csv", "w", encoding="utf-8") as file:
        file.write("width,height,colour,price\n")
        for _ in range(100):
            width, height, colour = numbers.uniform(1, 9), numbers.uniform(1, 9), numbers.choice(("red", "green", "blue"))
            file.write(f"{width:.3f},{height:.3f},{colour},{3 * width - height + (colour == 'red'):.3f}\n")


if __name__ == "__main__":
    main()
