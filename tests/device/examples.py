#!/usr/bin/env python3
"""Runs an example, in both modes where it has them, and compares what they end with.

usage: examples.py --folder DIR --config FILE --steps N [--ranks N] -- DUET     trains a config; weights of its last checkpoint
       examples.py [--modes] [--first COMMAND... --] -- PROGRAM ARGS             runs a program; MODE is replaced by the mode

Kernels with atomics give other bits each time. So where the modes differ eager is run again: if it differs from itself, bits
mean nothing and that is noted; if not, graph mode is wrong.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys


def run(command):
    """What it writes to stdout."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    print(done.stdout + done.stderr, flush=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {tail(done.stdout + done.stderr)}")
    return done.stdout


def tail(text):
    """The line that says what went wrong, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if re.search(r"error|\[\w+\]", line)), lines[-1] if lines else "no output")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(command, count):
    """What rank 0 of a training on this machine writes, whose ranks start as a launcher starts them."""
    shared = {**os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(count)]
    outputs = [rank.communicate()[0] for rank in ranks]
    for number, (rank, output) in enumerate(zip(ranks, outputs)):
        if rank.returncode != 0:
            sys.exit(f"{output}\nrank {number} of {count} ended with {rank.returncode}: {tail(output)}")
    return outputs[0]


def trained(options, mode, name):
    """The bytes of the weights that the config ends with."""
    work = pathlib.Path(options.folder) / name
    words = ["device=cuda", f"mode={mode}", f"work_dir={work}", f"trainer.max_steps={options.steps}"]
    if os.environ.get("DUET_REHEARSAL"):
        # The host code of the last step is compared, if that was replayed, and with it numbers that no kernel has made here:
        # so it is the smaller batch that an epoch of ten ends with.
        words += ["graph.verify_interval=0", "graph.check=off", "data.train.batch_size=200"]
    command = [*options.program, "train", options.config, *words]
    output = run_ranks(command, options.ranks) if options.ranks else run(command)
    if mode == "graph" and not re.search(r"\([1-9]\d* replayed", output):
        sys.exit(f"no step was replayed: {tail(output)}")
    saved = sorted(work.glob("**/step-*/model.safetensors"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not saved:
        sys.exit(f"{mode} mode ended well and left no checkpoint in {work}")
    return saved[-1].read_bytes()


def printed(options, mode):
    """What the program says, but for times."""
    output = run([mode if word == "MODE" else word for word in options.program])
    return [line for line in output.splitlines() if "seconds" not in line]


def expect_same(result):
    eager, graph = result("eager", "eager"), result("graph", "graph")
    if eager == graph:
        return
    if result("eager", "eager_again") == eager:
        sys.exit("the modes end with other weights, and eager twice with the same")
    print("NOTE bits not compared: eager differs from eager (kernels with atomics)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=".")
    parser.add_argument("--config")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--modes", action="store_true")
    parser.add_argument("--first", nargs="+", default=[], help="a command to run before")
    split = len(sys.argv) - 1 - sys.argv[::-1].index("--")
    options = parser.parse_args(sys.argv[1:split])
    options.program = sys.argv[split + 1:]
    if options.first:
        run(options.first)
    if options.config:
        expect_same(lambda mode, name: trained(options, mode, name))
    elif options.modes:
        expect_same(lambda mode, name: printed(options, mode))
    else:
        printed(options, "graph")


if __name__ == "__main__":
    main()
