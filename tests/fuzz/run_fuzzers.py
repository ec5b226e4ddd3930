#!/usr/bin/env python3
"""Runs the fuzz targets, each from its kept corpus and from seeds.py, and prints a line for each; exit code 1 for a report.

usage: run_fuzzers.py BUILD-FOLDER [--cpu-seconds N] [--jobs N] [--keep] [KIND ...]
"""

import argparse
import concurrent.futures
import hashlib
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import seeds

KEPT = pathlib.Path(__file__).resolve().parent / "corpus"
ENVIRONMENT = {**os.environ, "DUET_FILE_MEMORY": "64MiB"}
LIMITS = ["-rss_limit_mb=2048", "-timeout=60", "-print_final_stats=1"]
MOST_KEPT = 64 << 10  # bytes of a kind's kept corpus
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(process):
    try:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICKS


def kept(kind):
    """Name -> content."""
    path = KEPT / f"{kind}.tar.xz"
    if not path.exists():
        return {}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def keep(target, kind, corpus, folder):
    """The shortest files that together reach all that the corpus does, as far as there is room."""
    merged = folder / f"merged_{kind}"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    subprocess.run([target, "-merge=1", *LIMITS, merged, corpus], env=ENVIRONMENT, check=True, capture_output=True)
    room = MOST_KEPT
    with tarfile.open(KEPT / f"{kind}.tar.xz", "w:xz", preset=9) as archive:
        for content in sorted((path.read_bytes() for path in merged.iterdir()), key=lambda content: (len(content), content)):
            room -= len(content) + 128  # with its entry in the archive
            if room < 0:
                break
            entry = tarfile.TarInfo(hashlib.sha1(content).hexdigest()[:12])
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def fuzz(options, kind):
    """Its line, and whether all went well."""
    target, folder = options.build / "tests" / "fuzz" / f"fuzz_{kind}", options.build / "fuzzed"
    corpus, log = folder / kind, folder / f"{kind}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    for content in [*seeds.seeds(kind), *kept(kind).values()]:
        (corpus / hashlib.sha1(content).hexdigest()).write_bytes(content)
    with log.open("w") as output:
        process = subprocess.Popen([target, *LIMITS, f"-artifact_prefix={folder}/found_{kind}_", corpus], env=ENVIRONMENT, stdout=output,
                                   stderr=subprocess.STDOUT)
        used = 0
        while process.poll() is None:
            used = max(used, cpu_seconds(process))
            if used >= options.cpu_seconds:
                process.send_signal(signal.SIGINT)
                process.wait()
            time.sleep(0.5)
    text = log.read_text(errors="replace")
    runs = re.findall(r"#(\d+)", text)
    covered = re.findall(r"cov: (\d+)", text)
    if "run interrupted" not in text:
        return f"fuzz_{kind} FAILED after {used:.0f} CPU s, see {log}", False
    if options.keep:
        keep(target, kind, corpus, folder)
    return f"fuzz_{kind} {used:.0f} CPU s, {runs[-1]} runs, {covered[-1]} edges, no report", True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--cpu-seconds", type=float, default=600, help="of each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true", help="renew the kept corpora")
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    options = parser.parse_intermixed_args()
    known = list(seeds.whole())
    unknown = [kind for kind in options.kinds if kind not in known]
    if unknown:
        sys.exit(f"found no target {', '.join(unknown)}; known: {', '.join(known)}")
    KEPT.mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        fine = True
        for line, went_well in pool.map(lambda kind: fuzz(options, kind), options.kinds or known):
            print(line, flush=True)
            fine = fine and went_well
    sys.exit(not fine)


if __name__ == "__main__":
    main()
