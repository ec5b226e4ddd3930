#!/usr/bin/env python3
"""Every file of the kept corpora is read or refused with a message.

usage: replay_corpus.py PROGRAM, the duet_read_foreign of the build
"""

import pathlib
import subprocess
import sys
import tempfile

import run_fuzzers
import seeds


def main():
    files = {kind: [*run_fuzzers.kept(kind).values(), *seeds.seeds(kind)] for kind in seeds.whole()}
    with tempfile.TemporaryDirectory(prefix="corpus_") as folder:
        asked = []
        for kind, contents in files.items():
            if not run_fuzzers.kept(kind):
                sys.exit(f"there is no corpus of '{kind}'")
            for i, content in enumerate(contents):
                path = pathlib.Path(folder) / f"{kind}_{i}"
                path.write_bytes(content)
                asked.append(f"body_of_{kind} {path}")
        done = subprocess.run([sys.argv[1]], input="\n".join(asked) + "\n", capture_output=True, text=True,
                              env={**run_fuzzers.ENVIRONMENT, "OMP_NUM_THREADS": "1"}, check=False)
    answers = done.stdout.splitlines()
    if done.returncode != 0 or len(answers) != len(asked):
        sys.exit(f"the reader ended with {done.returncode} at '{asked[min(len(answers), len(asked) - 1)]}': {done.stderr[-2000:]}")
    for question, answer in zip(asked, answers):
        if answer.split()[1] not in ("loaded", "refused"):
            sys.exit(f"{question}: {answer}")
    loaded = sum(" loaded " in answer for answer in answers)
    if loaded < len(files):
        sys.exit(f"only {loaded} files were read")
    print(f"{len(answers)} files, {loaded} read, the others refused")


if __name__ == "__main__":
    main()
