#!/usr/bin/env python3
"""Runs the programme of docs/reliability.md: one line for each test, and exit code 1 if one failed. What this machine or build
lacks is left out, and said so.

usage: programme.py BUILD-FOLDER [--only R4[,R6...]] [--long] [--seed N]
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
import traceback

from torture import Failed, Torture  # first: it knows where the next ones are
import bad_configs
import disks
import failures
import foreign_files
import leaks
import lost_writes
import not_finite
import released
import strikes
from program import hear_signals

TESTS = {
    "R1": strikes.kills,
    "R2": failures.of_calls,
    "R3": lost_writes.run,
    "R4": foreign_files.run,
    "R5": disks.run,
    "R6": bad_configs.run,
    "R11": not_finite.run,
    "R12": leaks.run,
    "R13": strikes.signals,
    "R14": failures.of_allocations,
    "R17": released.run,
}


def run_one(name, options):
    """Whether it went well; its line is printed."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture_", ignore_cleanup_errors=True) as folder:
        torture = Torture(name, options, folder)
        try:
            line = TESTS[name](torture)
        except (Exception, SystemExit) as error:  # of a script that fails in its own way too: the others are still run
            what = error if isinstance(error, (Failed, SystemExit)) else traceback.format_exc()
            again = f"scripts/torture --only {name}{' --long' if options.long else ''} --seed {options.seed}"
            print(f"{name} FAILED at {torture.case}: {what}\nagain: {again}", flush=True)
            return False
        finally:
            torture.close()
    without = "".join(f"; left out: {what}" for what in torture.left_out)
    print(f"{name} {line}{without}, {time.monotonic() - begun:.0f} s", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="names of tests, with commas")
    parser.add_argument("--long", action="store_true", help="with the counts of docs/reliability.md: hours")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    hear_signals()
    known = sorted(TESTS, key=lambda name: int(name[1:]))
    names = options.only.split(",") if options.only else known
    unknown = [name for name in names if name not in TESTS]
    if unknown:
        sys.exit(f"found no test {', '.join(unknown)}; known: {', '.join(known)}")
    begun = time.monotonic()
    print(f"{'long' if options.long else 'short'} form, --seed {options.seed}", flush=True)
    failed = [name for name in names if not run_one(name, options)]
    told = f", {len(failed)} failed ({', '.join(failed)})" if failed else ""
    print(f"of {len(names)} tests {len(names) - len(failed)} passed{told}, {time.monotonic() - begun:.0f} s in all", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
