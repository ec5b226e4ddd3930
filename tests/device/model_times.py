#!/usr/bin/env python3
"""Times a model in both modes of duet and in PyTorch, in turns, and prints a FIGURE: medians, memory, waits per step.

usage: model_times.py --folder DIR [--peers torch,compile] [--repetitions N] MODEL -- PROGRAM     (duet_device_times)

All contestants stay alive and answer how long so many steps take. A peer that fails is noted; duet's failures, and a replayed
step that waits for the device, end this with 1.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 0.3  # of a repetition
FEWEST, MOST = 10, 2000  # steps of one


class Contestant:
    def __init__(self, kind, command):
        self.kind, self.times, self.found = kind, [], {}
        self.errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.steps = FEWEST
        self.error = ""

    def run(self):
        """Times a repetition; sets `error` if the program has ended."""
        if self.error:
            return
        try:
            self.process.stdin.write(f"{self.steps}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.wait()
            self.errors.seek(0)
            self.error = next((line for line in reversed(self.errors.read().splitlines()) if line.strip()), "no answer").strip()
            return
        self.found = json.loads(answer)
        self.times.append(self.found["us"])

    def choose_steps(self):
        """From a first repetition, which does not count."""
        self.run()
        if self.times:
            self.steps = int(min(MOST, max(FEWEST, SECONDS * 1e6 / max(self.times.pop(), 1e-3))))

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def contestants(options):
    torchscript = []
    if "TorchScript" in options.model:
        file = str(pathlib.Path(options.folder) / "resnet50.pt")
        subprocess.run([sys.executable, str(HERE / "resnet50.py"), file], check=True)
        torchscript = [file]
    for mode in ("eager", "graph"):
        yield Contestant(mode, [*options.program, options.model, mode, *torchscript])
    for peer in filter(None, options.peers.split(",")):
        yield Contestant(peer, [sys.executable, str(HERE / "peers.py"), options.model, peer])


def figure_of(model, found):
    figure = {"model": model}
    for each in found:
        if each.error:
            figure[f"{each.kind}_error"] = each.error
            continue
        figure |= {f"{each.kind}_us": statistics.median(each.times), f"{each.kind}_mib": each.found["mib"]}
        if "waits" in each.found:
            figure[f"{each.kind}_waits"] = each.found["waits"]
    return figure


def failure(figure):
    for mode in ("eager", "graph"):
        if f"{mode}_error" in figure:
            return f"{mode} mode: {figure[f'{mode}_error']}"
    waits = figure["graph_waits"]
    return f"a replayed step waits for the device {waits:g} times, expected none" if waits > 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=".")
    parser.add_argument("--peers", default="")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("model")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    found = list(contestants(options))
    for each in found:
        each.choose_steps()
    for _ in range(options.repetitions):
        for each in found:
            each.run()
    figure = figure_of(options.model, found)
    print("FIGURE " + json.dumps(figure))
    for each in found:
        each.end()
        if each.error and each.kind not in ("eager", "graph"):
            print(f"NOTE {each.kind} failed: {each.error[:200]}")
    sys.exit(failure(figure) or 0)


if __name__ == "__main__":
    main()
