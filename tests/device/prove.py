#!/usr/bin/env python3
"""Runs tests and examples on a GPU and writes the table between the marks of docs/gpu.md. scripts/gpu calls it.

Every step of the proof is one program with a time limit; all of them run, whatever fails before. With --stand-in nothing
is written: kernels do nothing there, so that a proof cannot come of it.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

BEGIN, END = "<!-- scripts/gpu writes from here -->", "<!-- to here -->"
FIGURE = re.compile(r"^FIGURE (\w+) (\w+) eager_us ([\d.]+) graph_us ([\d.]+) graph_mib ([\d.]+)$", re.MULTILINE)


class Proof:
    def __init__(self, options):
        self.options = options
        self.root, self.build = pathlib.Path(options.root), pathlib.Path(options.build)
        self.results, self.figures = [], []
        self.environment = dict(os.environ, DUET_DEVICE_STEPS="60" if options.quick else "500")
        if options.stand_in:
            self.environment["LD_PRELOAD"] = str(self.program("libcuda.so.1"))
            self.environment.update(DUET_DEVICE_STEPS="24", DUET_REHEARSAL="1", OMP_NUM_THREADS="1")

    def program(self, name):
        found = [path for path in self.build.rglob(name) if path.is_file()]
        if not found:
            sys.exit(f"gpu: {self.build} has no {name}; build it (scripts/gpu does) or pack it (scripts/pack)")
        return found[0]

    def command(self, name, *arguments):
        run = self.build / "run"  # of scripts/pack
        return [str(run), name, *arguments] if run.exists() else [str(self.program(name)), *arguments]

    def step(self, name, command, limit, environment=None):
        """Runs it; notes whether it ended well, and why not."""
        print(f"gpu: {name}", flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, env={**self.environment, **(environment or {})}, cwd=self.root, timeout=limit, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
            output, reason = done.stdout, "" if done.returncode == 0 else f"ended with {done.returncode}"
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            reason = f"took longer than {limit} s"
        failed = re.findall(r"^\[  FAILED  \] (\S+\.\S+?)(?:,| \(|$)", output, re.MULTILINE)
        if reason and failed:
            reason += ": " + ", ".join(dict.fromkeys(failed))
        self.results.append((name, reason, time.monotonic() - began))
        self.figures += FIGURE.findall(output)
        if reason:
            print(f"gpu: {name} {reason}\n" + "\n".join(output.splitlines()[-30:]), flush=True)
        return output, not reason

    def run(self):
        quick = self.options.quick
        self.step("both modes bit by bit, and no waiting", self.command("duet_device_tests"), 300 if quick else 900)
        stand_in = {"LD_LIBRARY_PATH": str(self.program("libcuda.so.1").parent), "OMP_NUM_THREADS": "1"}
        self.step("an error at every call of a capture (stand-in)", self.command("duet_cuda_tests"), 300, stand_in)
        names = ["core", "optim", "hooks", "trainers", "graph", "metrics", "weights", "distributed", "faults"]
        for name in [] if self.options.stand_in else names[:5] if quick else names:
            self.step(f"tests of {name}", self.command(f"duet_{name}_tests"), 900, {"OMP_NUM_THREADS": "1"})
        with tempfile.TemporaryDirectory() as folder:
            for example in sorted((self.root / "examples").glob("*.yaml")):
                if not self.options.stand_in or example.stem == "char_gpt":  # the others need cuDNN
                    self.example(example, pathlib.Path(folder))

    def example(self, config, folder):
        hashes = {}
        for mode in ("eager", "graph"):
            work = folder / f"{config.stem}_{mode}"
            steps = 10 if self.options.stand_in else 100 if self.options.quick else 400
            words = ["device=cuda", f"mode={mode}", f"work_dir={work}", f"trainer.max_steps={steps}"]
            words += ["graph.verify_interval=0", "graph.check=off"] if self.options.stand_in else []
            _, well = self.step(f"{config.stem}, {mode}", self.command("duet", "train", str(config), *words), 300)
            latest = sorted(work.glob("**/step-*/model.safetensors"))
            if well and latest:
                hashes[mode] = latest[-1].read_bytes()
        if self.options.stand_in:
            return
        if len(hashes) == 2 and hashes["eager"] != hashes["graph"]:
            self.results.append((f"{config.stem}, weights of both modes", "they differ", 0))

    def text(self):
        lines = ["", f"Written by `scripts/gpu{' --quick' if self.options.quick else ''}` on "
                     f"{datetime.date.today().isoformat()}.", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in machine().items()]
        lines += ["", "| what | outcome | s |", "|---|---|---|"]
        lines += [f"| {name} | {reason or 'passed'} | {seconds:.0f} |" for name, reason, seconds in self.results]
        lines += ["", "Time of a step in µs, batches copied from the host; memory is what the graphs hold.", "",
                  "| model | setting | eager | graph | ratio | MiB |", "|---|---|---|---|---|---|"]
        for model, setting, eager, graph, memory in self.figures:
            ratio = float(eager) / max(float(graph), 1e-9)
            lines.append(f"| {model} | {setting} | {eager} | {graph} | {ratio:.2f} | {memory} |")
        return "\n".join(lines) + "\n\n"

    def failures(self):
        return [(name, reason) for name, reason, _ in self.results if reason]


def machine():
    """What the figures depend on."""
    found = {}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        found["GPU, driver, memory"] = subprocess.run(query, stdout=subprocess.PIPE, text=True).stdout.strip()
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        found["CPU"] = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    versions = [sys.executable, "-c", "import torch, json; print(json.dumps([torch.__version__, torch.version.cuda]))"]
    asked = subprocess.run(versions, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if asked.returncode == 0:
        found["LibTorch, CUDA"] = ", ".join(json.loads(asked.stdout))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args()
    if not options.stand_in and not shutil.which("nvidia-smi"):
        sys.exit("gpu: found no nvidia-smi, expected a machine with a GPU; --stand-in rehearses without one")
    proof = Proof(options)
    proof.run()
    if not options.stand_in:
        page = proof.root / "docs/gpu.md"
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        page.write_text(before + BEGIN + proof.text() + END + rest.split(END)[1], encoding="utf-8")
        print(f"gpu: wrote {page}")
    else:
        print(proof.text())
    for name, reason in proof.failures():
        print(f"gpu: FAILED {name}: {reason}")
    sys.exit(1 if proof.failures() else 0)


if __name__ == "__main__":
    main()
