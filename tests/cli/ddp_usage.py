#!/usr/bin/env python3
"""Of several processes of the program one cannot read its config: all of them end at once with its error.

usage: ddp_usage.py PROGRAM
"""

import argparse
import pathlib
import tempfile

from ddp import CONFIG, RankProgram, expect, free_port

# What is wrong with the words of one process, and what it says of them.
MISTAKES = {
    "unknown key": (["train", "run.yaml", "no_such_key=1"], "no_such_key"),
    "no such file": (["train", "nowhere.yaml"], "nowhere.yaml"),
    "no such file to evaluate": (["eval", "nowhere.yaml"], "nowhere.yaml"),
}
RIGHT = ["train", "run.yaml", "work_dir=usage"]


def errors_in(text):
    return [line for line in text.splitlines() if line.startswith("error: ")]


def expect_told(answers, wrong, said, what):
    for rank, (code, text) in enumerate(answers):
        lines = errors_in(text)
        expect(code == 2 and len(lines) == 1, f"{what}: expected one error and exit code 2 of rank {rank}, found {code}:\n{text}")
        whose = ("" if rank == 0 else f"rank {rank}: ") + ("" if rank == wrong else f"on rank {wrong}: ")
        expect(lines[0].startswith(f"error: {whose}") and said in lines[0],
               f"{what}: expected 'error: {whose}... {said}' of rank {rank}:\n{text}")


def by_flags(program):
    for what, (words, said) in MISTAKES.items():
        for wrong in (0, 1):
            group = ["--world-size", 2, "--master-port", free_port()]
            started = [program.start([program.path, *(words if rank == wrong else RIGHT), "--rank", rank, *group])
                       for rank in range(2)]
            expect_told([program.finish(process) for process in started], wrong, said, f"{what} of rank {wrong}")


def by_variables(program):
    for what, (words, said) in MISTAKES.items():
        group = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = [program.start([program.path, *(words if rank == 1 else RIGHT)], RANK=str(rank), **group)
                   for rank in range(3)]
        expect_told([program.finish(process) for process in started], 1, said, what)


def under_torchrun(program):
    """It ends all of them when the first has ended; whoever is alive then has said why."""
    if not program.torchrun:
        return
    script = f'if [ "$RANK" = 1 ]; then exec {program.path} train nowhere.yaml; fi\nexec {program.path} "$@"'
    line = program.by_torchrun(2, "-c", script, "sh", *RIGHT)
    line[line.index(program.path)] = "sh"
    text = program.run(line, 1)
    expect(any(line.startswith("error: rank 1: [Config]") for line in errors_in(text)), f"expected rank 1's error:\n{text}")
    expect("did not come" not in text, f"expected no rank to wait:\n{text}")


def nobody_to_tell(program):
    """The error is shown while the process waits for the others, which may be started by hand."""
    wrong = ["train", "nowhere.yaml"]
    process = program.start([program.path, *wrong, "--rank", 1, "--world-size", 2, "--master-port", free_port()])
    text = ""
    for line in process.stdout:
        text += line
        if "waiting for the other ranks" in line:
            break
    expect("rank 1: " in text and "nowhere.yaml" in text, f"expected the error before the wait:\n{text}")
    process.kill()
    process.wait()
    # Wrong words end the process that has them at once.
    for words in ([*RIGHT, "--no-such-flag"], ["predict", "run.yaml", "--no-such-flag"]):
        text = program.run([program.path, *words], 2, RANK="0", WORLD_SIZE="2")
        expect("Run with --help" in text and "waiting" not in text, f"expected {words} to end at once:\n{text}")
    expect("usage: " in program.run([program.path, "train", "--help"], 0, RANK="0", WORLD_SIZE="2").lower(), "no help among several")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = RankProgram(options.program, pathlib.Path(folder))
        (program.folder / "run.yaml").write_text(CONFIG)
        for check in (by_flags, by_variables, under_torchrun, nobody_to_tell):
            check(program)
            print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
