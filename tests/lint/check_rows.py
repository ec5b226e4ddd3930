#!/usr/bin/env python3
"""docs/founding_rows.md keeps its word: every row is there, and every file and test that it names exists.

usage: check_rows.py [ROOT]
"""

import pathlib
import re
import sys

ROWS = [f"A{n}" for n in range(1, 26)] + [f"B{n}" for n in range(1, 26)]
TEST = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")


def tests_of(root):
    """Suite.Test of every C++ test."""
    found = set()
    for path in sorted((root / "tests").rglob("*.cpp")):
        found.update(f"{suite}.{name}" for suite, name in TEST.findall(path.read_text(encoding="utf-8")))
    return found


def problems(root):
    table = root / "docs" / "founding_rows.md"
    known = tests_of(root)
    rows = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"[ABG]\d+", cells[0]):
            rows[cells[0]] = cells
    for row in dict.fromkeys([*ROWS, *rows]):
        if row not in rows:
            yield f"{row} is missing"
            continue
        _, _, files, tests = rows[row]
        if files == tests == "not there yet":
            continue
        for kind, cell in (("file", files), ("test", tests)):
            names = re.findall(r"`([^`]+)`", cell)
            if not names:
                yield f"{row} names no {kind}"
            for name in names:
                is_path = "/" in name
                if not (root / name).exists() if is_path else name not in known:
                    yield f"{row} names {name}, which does not exist"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    found = list(problems(root))
    for problem in found:
        print(f"docs/founding_rows.md: {problem}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
