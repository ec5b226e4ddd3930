#!/usr/bin/env python3
"""Proves the CUDA path of duet on this machine, part by part, and writes what it found into docs/gpu.md. scripts/gpu calls it.

Every part is a command with a time limit; all of them run, whatever fails before, and each says PASS, FAIL or SKIPPED. With
--stand-in docs/gpu.md stays as it is: kernels do nothing there, so that a proof cannot come of it.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import page
import parts
import plan

MINUTES, QUICK_MINUTES = 25, 6


def run_all(todo, environment, root, deadline):
    """Those that want the machine for themselves in order, then the others beside each other."""
    results = []

    def run(part):
        result, output = parts.run_part(part, deadline - time.monotonic(), environment, root)
        if result.outcome == parts.PASS and part.means_nothing:
            result.reason = f"rehearsed only: {part.means_nothing}"
        return result, output

    def take(done):
        results.append(done[0])
        parts.report(*done)

    for part in todo:
        if part.alone:
            take(run(part))
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, part) for part in todo if not part.alone]):
            take(done.result())
    return results


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="the folder of the sources")
    parser.add_argument("--build", required=True, help="the folder of the programs")
    parser.add_argument("--quick", action="store_true", help=f"up to {QUICK_MINUTES} minutes in place of {MINUTES}")
    parser.add_argument("--stand-in", action="store_true", help="rehearses without a GPU")
    parser.add_argument("--only", default="", metavar="TEXT", help="the parts whose name holds this; docs/gpu.md stays")
    parser.add_argument("--list", action="store_true", help="shows the parts and their limits, and runs nothing")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="no part may take longer")
    return parser.parse_args()


def main():
    options = read_options()
    if not options.stand_in and not shutil.which("nvidia-smi"):
        sys.exit("gpu: found no nvidia-smi, expected a machine with a GPU; --stand-in rehearses without one")
    root = pathlib.Path(options.root).resolve()
    with tempfile.TemporaryDirectory(prefix="duet-gpu-") as folder:
        machine = plan.Machine(root, pathlib.Path(options.build).resolve(), pathlib.Path(folder), options.quick, options.stand_in)
        todo = [part for part in plan.parts(machine) if options.only in part.name]
        if not todo:
            sys.exit(f"gpu: found no part with '{options.only}' in its name, expected one of those that --list shows")
        if options.list:
            print("\n".join(f"{part.limit:5} s  {part.name}{' (skipped: ' + part.skipped + ')' if part.skipped else ''}"
                            for part in todo))
            return
        for part in todo:
            part.limit = min(part.limit, options.limit or part.limit)
        if problem := machine.problem():
            sys.exit(f"gpu: {problem}")
        deadline = time.monotonic() + 60 * (QUICK_MINUTES if options.quick else MINUTES)
        results = run_all(todo, machine.environment(), root, deadline)
        found = {"machine": machine.describe(), "quick": options.quick, "parts": [dataclasses.asdict(each) for each in results]}
    (machine.build / "gpu.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.stand_in or options.only:
        print(page.text(found))
    else:
        page.write(root / "docs/gpu.md", found)
        print("gpu: wrote docs/gpu.md")
    failures = [each for each in results if each.outcome == parts.FAIL]
    for each in failures:
        print(f"gpu: FAILED {each.name}: {each.reason}")
    print(f"gpu: {len(results)} parts, {len(failures)} failed,"
          f" {sum(each.outcome == parts.SKIPPED for each in results)} skipped")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
