"""The tests of the programme that scripts/test runs as well, and scripts of those with the counts of the long form."""

import re
import subprocess

from torture import HERE, TORCH_PYTHON, LeftOut

TESTS = HERE.parent
DDP_FAULTS = (TESTS / "cli/ddp_faults.py", "PROGRAM", "--faulty", "FAULTY", "--epochs", 20)
# Name: tests of scripts/test, and what the long form adds: the seconds it may take, and its words.
SUITES = {
    "R7": ("trainers|distributed", None),
    "R8": ("faults|cli.ddp_faults", (40_000, *DDP_FAULTS, "--rounds", 400)),
    "R9": ("device", (10_000, *DDP_FAULTS, "--rounds", 100, "--set", "device=cuda")),
    "R10": (r"trainers|cli.compare_examples|example\..*\.same",
            (15_000, TESTS / "cli/compare_examples.py", "PROGRAM", HERE.parents[1] / "examples", "--steps", 500)),
    "R15": (r"fuzz.corpus|memory\..*|threads\..*", (25_000, TESTS / "fuzz/run_fuzzers.py", "FUZZERS")),
    "R16": ("weights|foreign.weights", None),
}


def ended(torture, line, seconds):
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=seconds, check=False)
    torture.require(done.returncode == 0, f"{line[0]} ended with {done.returncode}", (done.stdout + done.stderr)[-5000:])
    return done.stdout


def long_form(torture, seconds, script, *words):
    """The last line of a script."""
    fuzzers = torture.build.parent / "fuzz"
    if "FUZZERS" in words and not fuzzers.is_dir():
        torture.left_out.append("fuzz targets (scripts/fuzz builds them)")
        return ""
    named = {"PROGRAM": torture.program, "FUZZERS": fuzzers, "FAULTY": torture.build / "tests/duet_faulty"}
    words = [named.get(word, word) for word in words]
    if "--rounds" in words:
        words += ["--seed", torture.seed]
    torture.case = script.name
    lines = ended(torture, [TORCH_PYTHON, script, *words], seconds).splitlines()
    return f"; {script.name}: {len(lines)} lines, the last one: {lines[-1]}"


def run(torture, name):
    pattern, more = SUITES[name]
    torture.case = f"the tests {pattern}"
    if name == "R9" and not re.search(r"cuda_devices\s+[1-9]", torture.good("doctor").text):
        raise LeftOut("needs a machine with GPUs")
    said = ended(torture, ["ctest", "--test-dir", torture.build, "-R", f"^({pattern})$", "--no-tests=error"], 7200)
    torture.left_out += re.findall(r"\d+ - (\S+) \((?:Skipped|Disabled|Not Run)\)", said)
    found = re.findall(r"Test +#\d+: (\S+) \.+ +Passed", said)
    torture.require(found, "no test has passed", said)
    return f"passed: {', '.join(found)}{long_form(torture, *more) if more and torture.long else ''}"
