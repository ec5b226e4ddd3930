#!/usr/bin/env python3
"""The example in README.md is examples/01_embed/main.cpp, to the letter."""

import pathlib
import re
import sys


def main():
    root = pathlib.Path(__file__).parents[2]
    blocks = re.findall(r"^```cpp\n(.*?)^```$", (root / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    example = (root / "examples/01_embed/main.cpp").read_text()
    if example not in blocks:
        print("README.md: no cpp block equals examples/01_embed/main.cpp; copy the file there")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
