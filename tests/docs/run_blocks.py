#!/usr/bin/env python3
"""Runs the code blocks of README.md and docs/ (pages.py says how they are marked) and prints how many of each kind ran
and which were skipped, and why.

usage: run_blocks.py --program DUET --cpp DOCS_BLOCKS [--python PYTHON --package FOLDER] [--page PAGE]
                     [--keep FOLDER] [--installed HOME]
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pages

# What a config that shows a part only is completed by.
BASE = """
model: {type: Mlp, in_features: 784, num_classes: 10, hidden: [8]}
data:
  train: {type: FashionMnist, split: train, limit: 32, batch_size: 8}
  val: {type: FashionMnist, split: test, limit: 16, batch_size: 8}
trainer: {max_steps: 2}
"""


class Failure(Exception):
    pass


class Runner:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.ran, self.skipped = collections.Counter(), []
        self.python = None
        self.python_page = None  # the folder of the page whose process runs
        self.modules = {}

    def page_folder(self, page):
        """A folder as a reader has it: the repository's examples, scripts/duet, duet."""
        folder = self.folder / re.sub(r"\W", "_", page)
        (folder / "scripts").mkdir(parents=True)
        (folder / "build").mkdir()
        (folder / "examples").symlink_to(pages.ROOT / "examples")
        for path in (folder / "scripts" / "duet", folder / "build" / "duet"):
            write_program(path, f'exec "{self.arguments.program}" "$@" $DOCS_WITH\n')
        return folder

    def environment(self, folder, block):
        home = {"HOME": self.arguments.installed} if self.arguments.installed else {}
        return {**os.environ, **home, "PATH": f"{folder / 'build'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                "DOCS": str(pathlib.Path(__file__).parent), "DOCS_WITH": block.notes.get("with", "")}

    def shell(self, folder, block, script):
        done = subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=600,
                              env=self.environment(folder, block), stdin=subprocess.DEVNULL)
        expected = int(block.notes.get("fails", "0"))
        text = done.stdout + done.stderr
        if done.returncode != expected:
            raise Failure(f"exit code {done.returncode}, expected {expected}\n{script}\n{text}")
        if "prints" in block.notes and block.notes["prints"] not in text:
            raise Failure(f"'{block.notes['prints']}' is not in its output:\n{text}")

    def run_sh(self, folder, block):
        self.shell(folder, block, block.text)

    def run_yaml(self, folder, block):
        name = block.notes.get("file", f"block_{block.line}.yaml")
        is_whole = re.search(r"^(model|_base_):", block.text, re.MULTILINE) is not None
        text = block.text if is_whole else "_base_: base.yaml\n" + block.text
        (folder / "base.yaml").write_text(BASE)
        (folder / name).write_text(text)
        self.shell(folder, block, f"build/{block.notes.get('by', 'duet')} train {name} --dry-run")

    def run_cpp(self, folder, block):
        """Compiled by the build; programs that no other block calls are run."""
        if "int main(" not in block.text:
            return
        name = block.notes.get("program", f"program_{block.line}")
        write_program(folder / "build" / name, f'exec "{self.arguments.cpp}" "{block.cpp_name}" "$@" $DOCS_WITH\n')
        if "program" not in block.notes:
            self.shell(folder, block, f"build/{name}")

    def tell_python(self, message):
        self.python.stdin.write(json.dumps(message) + "\n")
        self.python.stdin.flush()

    def run_python(self, folder, block):
        if self.python_page != folder:
            self.tell_python({"folder": str(folder)})
            self.python_page = folder
        code = "\n" * block.line + block.text  # so that a traceback names the page's lines
        self.tell_python({"name": block.page, "code": code, "prints": block.notes.get("prints", "")})
        answer = self.python.stdout.readline()
        if not answer:
            raise Failure("Python ended: " + self.python.stderr.read())
        if failed := json.loads(answer)["failed"]:
            raise Failure(failed)

    def end_python_page(self):
        if self.python_page is not None:
            self.tell_python({})
            self.python_page = None

    def start_python(self):
        environment = {**os.environ, "PYTHONPATH": self.arguments.package, "OMP_NUM_THREADS": "1"}
        self.python = subprocess.Popen([self.arguments.python, pathlib.Path(__file__).parent / "python_page.py"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=environment)

    def has_module(self, name):
        if name not in self.modules:
            test = f"import importlib.util as u, sys; sys.exit(u.find_spec('{name}') is None)"
            self.modules[name] = subprocess.run([self.arguments.python, "-c", test], check=False).returncode == 0
        return self.modules[name]

    def why_not(self, block):
        if "skip" in block.notes:
            return block.notes["skip"]
        if "installed" in block.notes and not self.arguments.installed:
            return "the test `consumer` runs it"
        if block.language == "python" and not self.arguments.package:
            return "the Python package was not built"
        missing = [name for name in re.split(r"[ ,]+", block.notes.get("needs", "")) if name and not self.has_module(name)]
        return f"Python has no {', '.join(missing)}" if missing else ""

    def run_block(self, folder, block):
        if "file" in block.notes:
            (folder / block.notes["file"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.notes["file"]).write_text(block.text)
        if block.language in pages.RUN and not (block.hidden and block.language == "cpp"):
            if not ("file" in block.notes and block.language == "python"):
                getattr(self, "run_" + block.language)(folder, block)
        if not block.hidden:
            self.ran["shown" if block.language in pages.SHOWN else block.language] += 1

    def run_page(self, page):
        failures, folder = [], self.page_folder(page)
        for block in pages.blocks_of(page):
            if reason := self.why_not(block):
                self.skipped += [] if block.hidden else [(block, reason)]
                continue
            try:
                self.run_block(folder, block)
            except (Failure, subprocess.TimeoutExpired) as error:
                failures.append(f"{block.name}: {error}")
        self.end_python_page()
        return failures


def write_program(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--cpp", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--package", default="", help="the folder of the built Python package; empty: there is none")
    parser.add_argument("--page", action="append", help="this page alone")
    parser.add_argument("--keep", help="an empty folder for what the blocks write, which stays")
    parser.add_argument("--installed", default="", help="a folder with an installed `duet` in it, the HOME of all blocks")
    arguments = parser.parse_args()
    # The blocks run in other folders. A link of a virtual environment's Python stays what it is.
    for name in ("program", "cpp", "python", "package", "installed"):
        setattr(arguments, name, getattr(arguments, name) and os.path.abspath(getattr(arguments, name)))
    return arguments


def main():
    arguments = parse_arguments()
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.keep or temporary).resolve()
        runner = Runner(arguments, folder)
        if arguments.package:
            runner.start_python()
        for page in arguments.page or pages.pages():
            try:
                failures += runner.run_page(page)
            except ValueError as error:
                failures.append(str(error))
        if runner.python:
            runner.python.stdin.close()
            runner.python.wait()
    for block, reason in runner.skipped:
        print(f"skipped: {block.name} ({block.language}): {reason}")
    for failure in failures:
        print(f"failed: {failure if len(failure) < 4000 else failure[:1000] + ' ... ' + failure[-3000:]}")
    print("ran: " + ", ".join(f"{count} {language}" for language, count in sorted(runner.ran.items())) +
          f"; skipped: {len(runner.skipped)}; failed: {len(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
