#!/usr/bin/env python3
"""Runs a program in both modes and checks that it prints the same, but for times.

usage: check_modes.py --expect REGEX -- PROGRAM ARGS...

Called as PROGRAM eager ARGS and PROGRAM graph ARGS; what REGEX finds must be there, and a hash of the weights. Lines that
speak of seconds may differ.
"""

import argparse
import re
import subprocess
import sys


def lines_of(program, mode, arguments):
    output = subprocess.run([program, mode, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(f"--- {mode}\n{output}", end="")
    return [line for line in output.splitlines() if "seconds" not in line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--expect", required=True)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()

    eager, graph = (lines_of(options.program, mode, options.arguments) for mode in ("eager", "graph"))
    if eager != graph:
        sys.exit("expected the same lines in both modes")
    for wanted in (options.expect, "weights [0-9a-f]{32}"):
        if not re.search(wanted, "\n".join(graph)):
            sys.exit(f"expected a line that matches: {wanted}")


if __name__ == "__main__":
    main()
