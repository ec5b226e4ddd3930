#!/usr/bin/env python3
"""The sources are laid out as the pinned clang-format has it (tests/requirements.txt). Exit status 77: there is none in .venv.

usage: check_format.py [--fix]
"""

import subprocess
import sys

from tree import LIBRARY, PROGRAMS, ROOT, sources


def main():
    programs = sorted(ROOT.glob(".venv*/lib/python3*/site-packages/clang_format/data/bin/clang-format"))
    if not programs:
        print("there is no clang-format in .venv; scripts/test puts it there unless DUET_TORCH names another LibTorch")
        return 77
    files = [ROOT / "duet.h", *sources(ROOT, [*LIBRARY, *PROGRAMS])]
    mode = ["-i"] if "--fix" in sys.argv else ["--dry-run", "-Werror"]
    result = subprocess.run([programs[0], *mode, *files], stderr=subprocess.PIPE, text=True, check=False)
    faults = [line for line in result.stderr.splitlines() if "error:" in line]
    print("\n".join(faults + ["scripts/format mends them"]) if faults else f"{len(files)} files are laid out well")
    return 1 if result.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
