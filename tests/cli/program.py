"""The program under test, run in a folder."""

import os
import subprocess


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = os.path.abspath(path), folder

    def run(self, *arguments, code=0):
        done = subprocess.run([self.path, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr
