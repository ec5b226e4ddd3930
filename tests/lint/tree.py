"""What the checks in this folder share: the files of the tree and their includes."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = ("base", "io", "data", "metrics", "checkpoint", "distributed", "optim", "core", "eager", "graph", "hooks")
PROGRAMS = ("cli", "python", "tests", "examples", "benchmarks")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources(root, folders, suffixes=(".h", ".cpp")):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def includes(path):
    """Yields (line number, bracket, included path)."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]
