"""The program under test, run in a folder, and the main() of a script of checks."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


def hear_signals():
    """For tests that send signals: a script's processes in the background ignore SIGINT, those of nohup SIGHUP, and so
    would the ones that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Program:
    def __init__(self, path, folder, **variables):
        """`variables` of the environment, besides those that are there."""
        self.path, self.folder = os.path.abspath(path), folder
        self.environment = {**os.environ, **variables}

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run(self, *arguments, code=0):
        done = subprocess.run([self.path, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              errors="replace", env=self.environment, check=False)
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def json(self, *arguments, code=0):
        """What it writes for --json."""
        self.run(*arguments, "--json", "result.json", code=code)
        return self.result()

    def result(self):
        return json.loads((self.folder / "result.json").read_text(encoding="utf-8"))

    def records(self, work_dir, kind):
        """The lines of that kind in the log of a run."""
        lines = (self.folder / work_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def refuses(self, cases, *words):
        """Cases (part of what is said, exit code, further words...) of a call that must end so."""
        for part, code, *further in cases:
            text = self.run(*words, *further, code=code)
            assert part in text, (further, text)


def run_checks(make, *checks):
    """The checks, each a function of what make(PROGRAM, FOLDER) returns, in their order."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        program = make(sys.argv[1], pathlib.Path(name))
        for check in checks:
            begun = time.monotonic()
            check(program)
            print(f"{check.__name__}: passed after {time.monotonic() - begun:.0f} s", flush=True)
