#!/usr/bin/env python3
"""Runs a program and checks what it prints.

usage: check_output.py --falls REGEX --to SHARE [--last REGEX] -- PROGRAM ARGS...

The numbers that the group of REGEX finds, in order, must end below SHARE times the first; the last line must match.
"""

import argparse
import re
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--falls", required=True)
    parser.add_argument("--to", type=float, required=True)
    parser.add_argument("--last", default="")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()

    output = subprocess.run(options.program, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(output, end="")
    numbers = [float(number) for number in re.findall(options.falls, output)]
    if len(numbers) < 2 or not numbers[-1] < options.to * numbers[0]:
        sys.exit(f"expected numbers that fall to {options.to} of the first, found {numbers}")
    if not re.search(options.last, output.splitlines()[-1]):
        sys.exit(f"expected a last line that matches: {options.last}")


if __name__ == "__main__":
    main()
