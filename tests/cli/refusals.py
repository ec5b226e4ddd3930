#!/usr/bin/env python3
"""What is wrong ends the program, as a process, with its exit code and a message on stderr that names it. refusals_test.cpp has
the tables of what is refused.

usage: refusals.py PROGRAM
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import small_data

CONFIG, DATA, CHECKPOINT, DIVERGED = 2, 3, 4, 5  # exit codes
CASES = [
    (CONFIG, r"unknown command 'trian'", "trian", "base.yaml"),
    (CONFIG, r"not expected: --fast", "train", "base.yaml", "--fast"),
    (CONFIG, r"cannot open 'nowhere\.yaml'", "eval", "nowhere.yaml"),
    (CONFIG, r"wrong\.yaml:2: unknown key 'sed' in the config; .*did you mean 'seed'", "train", "wrong.yaml"),
    (CONFIG, r"program\.yaml:1:\d+: found the control character", "compare", "program.yaml"),
    (CONFIG, r"command line: trainer\.max_steps is 'many', expected an integer", "train", "base.yaml", "trainer.max_steps=many"),
    (CONFIG, r"no tensor 'label'", "train", "base.yaml", "work_dir=run", "evaluator=[{type: Accuracy, target: label}]"),
    (DATA, r"'data/none': found nothing there", "train", "base.yaml", "work_dir=run", "data.train.images=data/none"),
    (DATA, r"'data/labels': .*name an idx3-ubyte file", "train", "base.yaml", "work_dir=run", "data.train.images=data/labels"),
    (CHECKPOINT, r"'nowhere' does not exist; name a folder", "inspect", "nowhere"),
    (CHECKPOINT, r"train first", "eval", "base.yaml", "work_dir=nowhere"),
    (DIVERGED, r"not finite", "train", "base.yaml", "work_dir=run", "optim_wrapper.optimizer.lr=1e30"),
    (1, r"writing '/dev/full' failed", "train", "base.yaml", "work_dir=run", "--json", "/dev/full"),
]
# Nobody may see these.
INTERNALS = re.compile(r"frame #|Exception raised from|INTERNAL ASSERT|terminate called|what\(\):|\.cpp:\d+|Sanitizer")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        small_data.write_data(folder / "data")
        (folder / "base.yaml").write_text(small_data.BASE)
        (folder / "wrong.yaml").write_text("_base_: base.yaml\nsed: 3\n")
        (folder / "program.yaml").write_bytes(b"\x7fELF\x02\x01\x01\0" + bytes(500))
        for code, pattern, *words in CASES:
            done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == code, (words, done.returncode, done.stderr)
            assert re.search(pattern, done.stderr, re.DOTALL) and not INTERNALS.search(done.stderr), (words, done.stderr)
    print(f"{len(CASES)} mistakes ended with their exit codes")


if __name__ == "__main__":
    main()
