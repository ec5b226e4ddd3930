"""The part of docs/gpu.md between the marks, made of what the parts of a proof have found (build/gpu.json)."""

import datetime
import textwrap

BEGIN, END = "<!-- scripts/gpu writes from here -->", "<!-- to here -->"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def number(figure, key, form="{:.0f}"):
    return form.format(figure[key]) if key in figure else ""


def ratio(figure, numerator, denominator):
    return f"{figure[numerator] / figure[denominator]:.2f}" if figure.get(numerator) and figure.get(denominator) else ""


def model_rows(figures):
    for each in figures:
        yield [each["model"], *(number(each, f"{kind}_us") for kind in ("eager", "graph", "torch", "compile")),
               *(ratio(each, f"{kind}_us", "graph_us") for kind in ("eager", "torch", "compile")),
               *(number(each, f"{kind}_mib") for kind in ("eager", "graph", "torch", "compile")),
               number(each, "graph_waits", "{:g}")]


def text(found):
    models = [figure for part in found["parts"] for figure in part["figures"]]
    passed = [part["name"] for part in found["parts"] if part["outcome"] == "PASS"]
    others = [part for part in found["parts"] if part["outcome"] != "PASS" or part["reason"]]
    lines = ["", f"Written by `scripts/gpu{' --quick' if found['quick'] else ''}` on {datetime.date.today().isoformat()}.", ""]
    lines += table(["", ""], found["machine"].items())
    lines += [textwrap.fill(f"{len(passed)} of {len(found['parts'])} parts passed: {'; '.join(passed)}.", 130,
                            break_long_words=False, break_on_hyphens=False), ""]
    if others:
        lines += table(["part", "outcome"], ([part["name"], part["outcome"] + ": " + part["reason"].replace("|", "/")] for part in others))
    if models:
        lines += ["Time of a step in µs, AdamW, one batch copied from pinned memory, replays without checks: medians of",
                  "repetitions that take turns. `compile` is `torch.compile(mode=\"reduce-overhead\")`. A ratio is by how many times graph",
                  "mode is faster. MiB: the most memory reserved. Waits: calls of a replayed step that wait for the device.", ""]
        lines += table(["model", "eager", "graph", "PyTorch", "compile", "eager / graph", "PyTorch / graph", "compile / graph",
                        "MiB eager", "MiB graph", "MiB PyTorch", "MiB compile", "waits"], model_rows(models))
    return "\n".join(lines) + "\n"


def write(path, found):
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    path.write_text(before + BEGIN + "\n" + text(found) + END + rest.split(END)[1], encoding="utf-8")
