#!/usr/bin/env python3
"""A lambda that make_task cannot take gives one error, which says what it takes.

usage: wrong_make_task.py COMPILER SOURCE INCLUDE-FOLDER...
"""

import subprocess
import sys


def main():
    compiler, source, *folders = sys.argv[1:]
    flags = [flag for folder in folders for flag in ("-isystem", folder)]
    command = [compiler, "-std=c++20", "-fsyntax-only", *flags, source]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    print("\n".join(errors))
    wanted = "make_task takes a shared_ptr or ModuleHolder and either loss(Module&, const Batch&), or forward"
    return 0 if done.returncode != 0 and len(errors) == 1 and wanted in errors[0] else 1


if __name__ == "__main__":
    sys.exit(main())
