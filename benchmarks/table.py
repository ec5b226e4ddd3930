#!/usr/bin/env python3
"""Runs step_benchmark, and the peers if asked, and prints one Markdown table. scripts/bench calls it.

Every figure is time per step, the median of the repetitions: on one thread CPU time of the whole process, on several
the time of the clock, since threads that wait for each other spend CPU time too. A repetition is long (seconds): an
eager loop slows down over its first hundreds of steps while the allocator's heap fragments, and what counts is the pace
that training settles at.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

OURS = {"hand": "hand-written", "hand_optim": "with torch::optim", "eager": "duet eager", "graph": "duet graph"}


def run_ours(options, repetitions):
    program = options.root / "build/release/benchmarks/step_benchmark"
    command = [
        str(program), f"--benchmark_filter={options.filter}", f"--benchmark_repetitions={repetitions}",
        "--benchmark_enable_random_interleaving=true", "--benchmark_format=json"]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"{program} ended with status {done.returncode}")
    report = json.loads(done.stdout)
    return machine_text(report["context"]), ours_from_json(report, "cpu_time" if options.threads == 1 else "real_time")


def machine_text(context):
    """What the figures hold for: CPU, instruction set, threads, LibTorch, date."""
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    words = [found[1] if found else "unknown CPU", f"{context['num_cpus']} cores", context["instruction_set"],
             f"threads used: {context['threads']}", f"LibTorch {context['libtorch']}", context["date"][:10]]
    return ", ".join(words)


def ours_from_json(report, clock):
    """{case: {contestant: time in us}}; stops at a benchmark that reported an error."""
    times, checked = {}, {}
    for line in report["benchmarks"]:
        if line.get("run_type") == "aggregate":
            continue
        case, contestant = line["name"].split("/")[:2]
        if line.get("error_occurred"):
            sys.exit(f"{line['name']}: {line['error_message']}")
        times.setdefault(case, {}).setdefault(contestant, []).append(line[clock])
        checked.setdefault(case, {}).setdefault(contestant, []).append(line.get("checked", 0))
    shares = {case: {f"{name}, share checked": statistics.mean(found) for name, found in row.items()}
              for case, row in checked.items()}
    return {case: {name: statistics.median(found) for name, found in row.items()} | shares[case]
            for case, row in times.items()}


def run_peers(options, case):
    """{peer: time in us, or None where it failed}"""
    print(f"duet: peers on {case}", file=sys.stderr)
    done = subprocess.run(
        [options.root / ".venv-peers/bin/python", options.root / "benchmarks/peers/run.py", "--case", case, "--threads",
         str(options.threads)], stdout=subprocess.PIPE, text=True, check=True)
    table = {}
    for peer, found in json.loads(done.stdout).items():
        if "error" in found:
            print(f"duet: {peer} on {case}: {found['error']}", file=sys.stderr)
        table[peer] = found.get("cpu_us" if options.threads == 1 else "wall_us")
    return table


def time_text(microseconds):
    if microseconds is None:
        return "–"
    return f"{microseconds:.0f}" if microseconds < 10_000 else f"{microseconds / 1000:.1f} k"


def ratio_text(numerator, denominator):
    return f"{numerator / denominator:.2f}" if numerator and denominator else ""


def markdown(ours, peers):
    names = list(dict.fromkeys(name for row in peers.values() for name in row))
    head = ["model (AdamW), µs per step", *OURS.values(), "eager / hand-written", "eager / graph"]
    head += ["cost of checks", "steps checked"]
    head += [column for name in names for column in (name, f"{name} / graph")]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for case, row in ours.items():
        graph = row.get("graph")
        cells = [case, *(time_text(row[key]) if key in row else "" for key in OURS)]
        cells += [ratio_text(row.get("eager"), row.get("hand")), ratio_text(row.get("eager"), graph)]
        unchecked = row.get("graph_unchecked")
        cells += [f"{100 * (graph / unchecked - 1):+.1f} %" if graph and unchecked else ""]
        cells += [f"{100 * row['graph, share checked']:.1f} %" if graph and unchecked else ""]
        for name in names:
            microseconds = peers[case].get(name)
            cells += [time_text(microseconds), ratio_text(microseconds, graph)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="what a step costs, side by side")
    parser.add_argument("--root", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--peers", action="store_true", help="also trainers in Python, from .venv-peers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="3 repetitions, not 5")
    parser.add_argument("--filter", default=".", help="regular expression on 'CASE/CONTESTANT/'")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    options = parser.parse_args()

    machine, ours = run_ours(options, 3 if options.quick else 5)
    peers = {case: run_peers(options, case) for case in ours} if options.peers else {}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "ours": ours, "peers": peers}, indent=1) + "\n")
    print(machine, markdown(ours, peers), sep="\n\n")


if __name__ == "__main__":
    main()
