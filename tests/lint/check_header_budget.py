#!/usr/bin/env python3
"""Preprocesses duet.h and fails if it grew past the budget: light headers are what keeps users' builds fast.

usage: check_header_budget.py COMPILER INCLUDE-FOLDER...
"""

import subprocess
import sys

MAX_LINES = 130_000


def main():
    compiler, *folders = sys.argv[1:]
    flags = [flag for folder in folders for flag in ("-isystem", folder)]
    command = [compiler, "-std=c++20", "-x", "c++", "-E", "-P", *flags, "-"]
    text = subprocess.run(command, input=b"#include <duet/duet.h>\n", stdout=subprocess.PIPE, check=True).stdout
    lines = text.count(b"\n")
    print(f"duet.h: {lines} preprocessed lines, at most {MAX_LINES}")
    return 1 if lines > MAX_LINES else 0


if __name__ == "__main__":
    sys.exit(main())
