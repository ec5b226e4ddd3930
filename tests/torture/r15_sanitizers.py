"""R15: readers of foreign files on all that fuzzers have found (tests/fuzz/corpus), and in the long form the programs under
sanitizers (scripts/test --memory builds them) and ten CPU minutes of each fuzz target (scripts/fuzz does)."""

import re
import subprocess
import sys

from torture import HERE


def ended(torture, line, seconds):
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=seconds, check=False)
    torture.require(done.returncode == 0, f"{line[0]} ended with {done.returncode}", (done.stdout + done.stderr)[-5000:])
    return done.stdout.strip()


def under_sanitizers(torture):
    lines = []
    for kind in ("memory", "threads"):
        programs = list((torture.build / "tests").glob(f"duet_*_{kind}_tests"))
        if not programs:
            torture.left_out.append(f"programs under sanitizers of {kind} (scripts/test --{kind} builds them)")
            continue
        torture.case = f"programs under sanitizers of {kind}"
        ended(torture, ["ctest", "--test-dir", torture.build, "-L", f"^{kind}$", "--output-on-failure"], 7200)
        lines.append(f"{len(programs)} programs under sanitizers of {kind} without a report")
    return lines


def fuzzed(torture):
    build = torture.build.parent / "fuzz"
    if not list((build / "tests/fuzz").glob("fuzz_*")):
        torture.left_out.append("fuzz targets (scripts/fuzz builds them)")
        return []
    torture.case = "fuzz targets"
    lines = ended(torture, [sys.executable, HERE.parent / "fuzz/run_fuzzers.py", build], 6 * 3600).splitlines()
    return [f"{sum('no report' in line for line in lines)} fuzz targets of 600 CPU s each without a report"]


def run(torture):
    torture.case = "the kept corpora"
    said = ended(torture, [sys.executable, HERE.parent / "fuzz/replay_corpus.py", torture.built("duet_read_foreign")], 600)
    lines = [f"{re.match('[0-9]+', said).group()} files of the corpora of fuzzers read or refused"]
    if torture.long:
        return "; ".join(lines + under_sanitizers(torture) + fuzzed(torture))
    torture.left_out.append("programs under sanitizers and fuzz targets (long form)")
    return lines[0]
