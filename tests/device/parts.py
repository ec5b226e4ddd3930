"""A part of the proof: one command that ends in time, and what came of it."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
import time

PASS, FAIL, SKIPPED = "PASS", "FAIL", "SKIPPED"
SKIP_CODE = 77  # of a command; its last line says why
SHOWN_LINES = 30  # of a part that failed

FIGURE = re.compile(r"^FIGURE (\{.*\})$", re.MULTILINE)
NOTE = re.compile(r"^NOTE (.*)$", re.MULTILINE)
FAILED_TEST = re.compile(r"^\[  FAILED  \] (\S+\.\S+?)(?:,| \(|$)", re.MULTILINE)
PASSED_TESTS = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.MULTILINE)


@dataclasses.dataclass
class Part:
    name: str
    command: list
    limit: int  # seconds
    environment: dict = dataclasses.field(default_factory=dict)
    runs_tests: bool = False  # a program of GoogleTest: one that runs no test has proved nothing
    skipped: str = ""  # why it is left out here
    means_nothing: str = ""  # what a rehearsal without a device cannot show
    alone: bool = True  # else beside others, at the end


@dataclasses.dataclass
class Result:
    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0
    figures: list = dataclasses.field(default_factory=list)

    def line(self):
        return f"{self.outcome:7} {self.name}{': ' + self.reason if self.reason else ''} ({self.seconds:.0f} s)"


def run_command(part, seconds, environment, folder):
    """Exit code, or None if it had to be killed, and output. Nothing that it started lives on."""
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(part.command, env={**environment, **part.environment}, cwd=folder, text=True,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return code, output.read()


def last_line(output):
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")


def judge(part, code, output, seconds):
    """(outcome, reason)"""
    if code is None:
        return FAIL, f"took longer than {seconds:.0f} s"
    if code == SKIP_CODE:
        return SKIPPED, last_line(output)
    failed = ", ".join(dict.fromkeys(FAILED_TEST.findall(output)))
    if code != 0:
        return FAIL, failed or f"ended with {code}: {last_line(output)}"
    passed = PASSED_TESTS.search(output)
    if part.runs_tests and (passed is None or int(passed.group(1)) == 0):
        return FAIL, "no test ran"
    return PASS, "; ".join(NOTE.findall(output))


def run_part(part, left, environment, folder):
    """`left`: seconds until the proof must be done."""
    if part.skipped:
        return Result(part.name, SKIPPED, part.skipped), ""
    seconds = min(part.limit, left)
    if seconds < 1:
        return Result(part.name, FAIL, "not run: the time of the whole proof was over"), ""
    began = time.monotonic()
    try:
        code, output = run_command(part, seconds, environment, folder)
    except OSError as error:
        return Result(part.name, FAIL, f"cannot run {part.command[0]}: {error}"), ""
    outcome, reason = judge(part, code, output, seconds)
    figures = [json.loads(figure) for figure in FIGURE.findall(output)]
    return Result(part.name, outcome, reason, time.monotonic() - began, figures), output


def report(result, output):
    print(result.line(), flush=True)
    if result.outcome == FAIL:
        print("\n".join("    " + line for line in output.splitlines()[-SHOWN_LINES:]), flush=True)
