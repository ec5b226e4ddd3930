"""The program under test, run in a folder."""

import os
import signal
import subprocess


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

    def run(self, *arguments, code=0):
        done = subprocess.run([self.path, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              errors="replace", env=self.environment, check=False)
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr
