"""The program under test, run in a folder."""

import os
import subprocess


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
