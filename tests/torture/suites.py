"""The tests of the programme that scripts/test runs as well, and scripts of those with the counts of the long form."""

import glob
import re
import subprocess

from torture import HERE, TORCH_PYTHON, LeftOut

TESTS = HERE.parent
DDP_FAULTS = (TESTS / "cli/ddp_faults.py", "PROGRAM", "--faulty", "FAULTY", "--epochs", 20)
# Name: tests of scripts/test; those of the long form; and a script of the long form: the seconds it may take, and its words.
SUITES = {
    "R7": ("trainers|distributed", None, None),
    "R8": ("faults|cli.ddp_faults", None, (40_000, *DDP_FAULTS, "--rounds", 400)),
    "R9": ("device", None, (10_000, *DDP_FAULTS, "--rounds", 100, "--set", "device=cuda")),
    "R10": ("trainers|cli.compare_examples", r"example\..*\.same",
            (15_000, TESTS / "cli/compare_examples.py", "PROGRAM", HERE.parents[1] / "examples", "--steps", 500)),
    "R15": ("fuzz.corpus", r"memory\..*", (25_000, TESTS / "fuzz/run_fuzzers.py", "FUZZERS")),
    "R16": ("weights|foreign.weights", None, None),
}
# What these need, and who builds it.
BUILT = {
    "FUZZERS": ("../fuzz/tests/fuzz/fuzz_*", "fuzz targets (scripts/fuzz builds them)"),
    r"memory\..*": ("tests/duet_*_memory_tests", "programs under sanitizers (scripts/test --memory builds them)"),
}


def is_built(torture, name):
    pattern, what = BUILT.get(name, ("", ""))
    if not pattern or glob.glob(str(torture.build / pattern)):
        return True
    torture.left_out.append(what)
    return False


def ended(torture, line, seconds):
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=seconds, check=False)
    torture.require(done.returncode == 0, f"{line[0]} ended with {done.returncode}", (done.stdout + done.stderr)[-5000:])
    return done.stdout


def tests(torture, pattern):
    """Names of those that passed."""
    torture.case = f"the tests {pattern}"
    said = ended(torture, ["ctest", "--test-dir", torture.build, "-R", f"^({pattern})$", "--no-tests=error"], 4 * 3600)
    torture.left_out += re.findall(r"\d+ - (\S+) \((?:Skipped|Disabled)\)", said)
    found = re.findall(r"Test +#\d+: (\S+) \.+ +Passed", said)
    torture.require(found, "no test has passed", said)
    return found


def script(torture, seconds, path, *words):
    """Its last line."""
    named = {"PROGRAM": torture.program, "FUZZERS": torture.build.parent / "fuzz", "FAULTY": torture.build / "tests/duet_faulty"}
    seed = ["--seed", torture.seed] if "--rounds" in words else []
    torture.case = path.name
    lines = ended(torture, [TORCH_PYTHON, path, *(named.get(word, word) for word in words), *seed], seconds).splitlines()
    return f"; {path.name}: {len(lines)} lines, the last one: {lines[-1]}"


def run(torture, name):
    pattern, of_long, of_script = SUITES[name]
    if name == "R9" and not re.search(r"cuda_devices\s+[1-9]", torture.good("doctor").text):
        raise LeftOut("needs a machine with GPUs")
    if torture.long and of_long and is_built(torture, of_long):
        pattern += f"|{of_long}"
    line = f"passed: {', '.join(tests(torture, pattern))}"
    if torture.long and of_script and all(is_built(torture, word) for word in of_script):
        line += script(torture, *of_script)
    return line
