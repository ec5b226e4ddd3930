#!/usr/bin/env python3
"""Several processes of the program train one model: under torchrun, mpirun, duet launch, and started by hand.

usage: ddp.py PROGRAM

Both modes end with the same weights at every number of processes; a run goes on with another number of them; what is
wrong with a launch, a config or the data of one process ends all of them, with a message each and without hanging.
Launchers that are not there are left out, and said so.
"""

import argparse
import atexit
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from program import Program

CONFIG = """
model: {type: SmallCnn, channels: [4], dropout: 0.1}
data:
  train: {type: FashionMnist, split: train, limit: 203, batch_size: 16, shuffle: true}
  val: {type: FashionMnist, split: test, limit: 51, batch_size: 16}
trainer: {max_epochs: 2}
optim_wrapper:
  optimizer: {type: SGD, lr: 0.05, momentum: 0.9}
  clip_grad: {max_norm: 1.0}
evaluator: [{type: Accuracy}]
default_hooks: {checkpoint: {interval: 5}}
distributed: {start_timeout: 200, timeout: 60}
"""
# Another text has other characters, and the model another size.
TEXT = """
model: {type: Gpt, context: 8, n_layer: 1, n_head: 2, n_embd: 8}
data: {train: {type: Text, path: text, context: 8, batch_size: 4}}
trainer: {max_steps: 2}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.01}}
distributed: {start_timeout: 200, timeout: 60}
"""
SECONDS = 300  # for any run here, on a slow machine that is busy with other things
NO_END = 10_000_000  # epochs or steps of a run that ends when it is told to, or killed


def fail(message):
    sys.exit(f"FAILED: {message}")


def expect(condition, message):
    if not condition:
        fail(message)


def free_port():
    """One that nobody gets who asks the system for any: it may be long until it is taken."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(10000, first) if first > 12000 else 0))
                return probe.getsockname()[1]
            except OSError:
                continue


def newest_checkpoint(folder):
    """The step of the newest one that is whole; 0: there is none."""
    names = [path.name for path in folder.glob("checkpoints/step-*")]
    return max((int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)), default=0)


def plain_environment():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(names)}


class RankProgram(Program):
    """The program under launchers, which start several processes of it."""

    def __init__(self, path, folder):
        super().__init__(path, folder)
        self.environment = plain_environment()
        self.torchrun = self.find_torchrun()
        self.mpirun = shutil.which("mpirun")

    def find_torchrun(self):
        beside = pathlib.Path(__file__).resolve().parents[2] / ".venv/bin/torchrun"
        return str(beside) if beside.exists() else shutil.which("torchrun")

    def start(self, words, cwd=None, **variables):
        process = subprocess.Popen(list(map(str, words)), cwd=cwd or self.folder, env={**self.environment, **variables},
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        atexit.register(end, process)
        return process

    def finish(self, process):
        """Exit code and output; whoever hangs is killed."""
        try:
            text = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            end(process)
            fail(f"{process.args} hangs:\n{process.communicate()[0]}")
        if process.args[0] != self.torchrun:  # which has a c10d of its own
            for trace in ("frame #", "Exception raised from"):
                expect(trace not in text, f"{process.args} shows a stack trace:\n{text}")
        return process.returncode, text

    def run(self, words, code=0, **variables):
        found, text = self.finish(self.start(words, **variables))
        expect(found == code, f"expected exit code {code} of {words}, found {found}:\n{text}")
        return text

    def by_torchrun(self, count, *words, options=()):
        return [self.torchrun, "--no-python", "--nproc-per-node", count, "--standalone", *options, self.path, *words]

    def by_mpirun(self, count, *words):
        return [self.mpirun, "--allow-run-as-root", "--oversubscribe", "-np", count, self.path, *words]

    def by_hand(self, *ranks, config="run.yaml", folders=(None, None)):
        """What two processes answer, whose words or folders differ."""
        port = free_port()
        group = ["--world-size", len(ranks), "--master-port", port]
        started = [self.start([self.path, "train", config, "work_dir=hand", "--rank", i, *group, *own], cwd=folders[i])
                   for i, own in enumerate(ranks)]
        return [self.finish(process) for process in started]

    def wait_until_saved(self, name, step, *processes):
        """Until a checkpoint of that step or of a later one is there; False if a process ends before."""
        while newest_checkpoint(self.folder / name) < step:
            if any(process.poll() is not None for process in processes):
                return False
            time.sleep(0.005)
        return True

    def result(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())


def words(work_dir, mode="eager", batch_size=16, *further):
    return ("train", "run.yaml", f"work_dir={work_dir}", "--json", f"{work_dir}.json", "--mode", mode,
            f"data.train.batch_size={batch_size}", f"data.val.batch_size={batch_size}", *further)


def launchers(program, count):
    if count == 1:
        return {"alone": lambda *all_words: [program.path, *all_words]}
    found = {}
    if program.torchrun:
        found["torchrun"] = lambda *all_words: program.by_torchrun(count, *all_words)
    if program.mpirun:
        found["mpirun"] = lambda *all_words: program.by_mpirun(count, *all_words)
    return found


def same_weights(program):
    """In both modes and under every launcher."""
    runs = 0
    for count in (1, 2, 4):
        hashes = {}
        for launcher, line in launchers(program, count).items():
            for mode in ("eager", "graph"):
                name = f"{launcher}_{count}_{mode}"
                text = program.run(line(*words(name, mode, 16 // count)))
                hashes[name] = program.result(name)["weights_hash"]
                runs += 1
                expect(text.count("finished after 26 steps") == 1, f"expected one summary of 26 steps:\n{text}")
                expect(text.count("val  step 26/26") == 1, f"expected one line of the last validation:\n{text}")
                expect(count == 1 or text.count(f"rank 0 of {count}") == 1, f"expected the launcher once:\n{text}")
        expect(len(set(hashes.values())) == 1, f"expected the same weights on {count} ranks: {hashes}")
    return runs


def other_world_size(program):
    """A run of two processes goes on with one and with four, each with the same samples per step."""
    if not program.torchrun:
        return
    program.run(program.by_torchrun(2, *words("two", "eager", 8, "trainer.max_steps=18")))
    for count in (1, 4):
        shutil.copytree(program.folder / "two", program.folder / f"two_{count}")
        line = launchers(program, count)["alone" if count == 1 else "torchrun"]
        text = program.run(line(*words(f"two_{count}", "graph", 16 // count, "--resume", "auto")))
        expect(text.count("resumed from 'two_") == 1 and "after step 18" in text, f"expected one resume:\n{text}")
        expect(program.result(f"two_{count}")["steps"] == 26, f"expected 26 steps:\n{text}")
    text = program.run(program.by_torchrun(2, "eval", "run.yaml", "work_dir=two_4", "--json", "eval_2.json"))
    program.run([program.path, "eval", "run.yaml", "work_dir=two_4", "--json", "eval_1.json"])
    two, one = program.result("eval_2")["metrics"], program.result("eval_1")["metrics"]
    expect(two["accuracy"] == one["accuracy"] and abs(two["loss"] - one["loss"]) < 1e-5, f"eval differs: {two}, {one}")
    expect(text.count("samples of data.val") == 1, f"expected one summary:\n{text}")


def restart_of_another_run(program):
    """A launcher that starts a run anew goes on from that run, not from one that was there before."""
    launch = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "first"}
    program.run([program.path, *words("anew")], **launch)
    launch["TORCHELASTIC_RESTART_COUNT"] = "1"
    text = program.run([program.path, *words("anew")], **launch)
    expect("is started anew (restart 1): --resume auto" in text and "after step 26" in text, f"expected a resume:\n{text}")
    text = program.run([program.path, *words("anew")], **{**launch, "TORCHELASTIC_RESTART_COUNT": "0"})
    expect("is started anew (restart 0): --resume auto" in text, f"expected a resume when machines come or go:\n{text}")
    nameless = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    program.run([program.path, *words("nameless")], **nameless)
    text = program.run([program.path, *words("nameless")], **nameless)
    expect("resumed from" not in text, f"expected a run without a name of its own to begin anew:\n{text}")
    text = program.run([program.path, *words("anew", "eager", 16, "--resume", "none")], **launch)
    expect("resumed from" not in text and "checkpoints.1'" in text, f"expected --resume none to hold:\n{text}")
    text = program.run([program.path, *words("anew")], **{**launch, "TORCHELASTIC_RUN_ID": "second"})
    expect("resumed from" not in text and "checkpoints.2'" in text, f"expected the other run to be set aside:\n{text}")


def lose_one(program, epochs):
    """A run of torchrun's that loses a process after its first checkpoint: its name and what it said."""
    name = f"restarted_{epochs}"
    own = words(name, "eager", 8, f"trainer.max_epochs={epochs}")
    process = program.start(program.by_torchrun(2, *own, options=("--max-restarts", 1)))
    program.wait_until_saved(name, 5, process)
    for pid in workers_of(process.pid)[1:]:
        kill(pid, signal.SIGKILL)
    code, text = program.finish(process)
    expect(code == 0, f"expected the restarted run to end well, found {code}:\n{text}")
    return name, text


def restart(program):
    """torchrun starts a run anew after a lost process: it goes on, and ends as if nothing had been."""
    if not program.torchrun:
        return
    for epochs in (40, 160, 640):  # a fast machine may be through with few of them before anybody is killed
        name, text = lose_one(program, epochs)
        if "is started anew" in text:
            break
    expect("is started anew (restart 1): --resume auto" in text, f"expected --resume auto:\n{text}")
    expect(text.count(f"resumed from '{name}/") == 1, f"expected one resume:\n{text}")
    program.run(program.by_torchrun(2, *words("unbroken", "graph", 8, f"trainer.max_epochs={epochs}")))
    found, wanted = program.result(name), program.result("unbroken")
    expect(found["weights_hash"] == wanted["weights_hash"], "a restarted run has other weights than an unbroken one")


def lost_store(program):
    """Rank 0, which holds the store, is killed: the other names it, in one message."""
    own = words("lost", "eager", 8, f"trainer.max_epochs={NO_END}")
    group = ["--world-size", 2, "--master-port", free_port()]
    first, other = (program.start([program.path, *own, "--rank", rank, *group]) for rank in range(2))
    expect(program.wait_until_saved("lost", 5, first, other), "the run ended early")
    first.kill()
    program.finish(first)
    code, text = program.finish(other)
    errors = [line for line in text.splitlines() if line.startswith("error: rank 1: ")]
    expect(code == 6 and len(errors) == 1 and "rank 0" in errors[0], f"expected one error with code 6, found {code}:\n{text}")


def workers_of(launcher):
    """Processes that a launcher has started, the oldest first."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == launcher:
                found.append((int(fields[19]), int(entry.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


def all_below(pid):
    """Processes that it has started, after those that they have."""
    return [below for child in workers_of(pid) for below in (*all_below(child), child)]


def kill(pid, number):
    """False if it has ended by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(process):
    """With those whom it has started: some of them would run for ever."""
    if process.poll() is None:
        for pid in [*all_below(process.pid), process.pid]:
            kill(pid, signal.SIGKILL)


def both(program, codes, pattern, *ranks, **how):
    for i, (code, text) in enumerate(program.by_hand(*ranks, **how)):
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        expect(code in codes, f"expected exit code {codes} of rank {i} for {ranks}, found {code}:\n{text}")
        told = len(lines) == 1 and pattern in lines[0]
        expect(told, f"expected one error with '{pattern}' of rank {i} for {ranks}:\n{text}")
        expect(lines[0].startswith("error: rank 1: ") == (i == 1), f"expected the rank before the error:\n{text}")


def mistakes_of_one_rank(program):
    for wrong in (0, 1):
        ranks = [[], []]
        ranks[wrong] = ["trainer.max_epoch=3"]
        both(program, (2,), "unknown key 'max_epoch' in trainer", *ranks)
    said = "'trainer.max_epochs: 2' on rank 0 and 'trainer.max_epochs: 3' on rank 1"
    both(program, (2,), said, [], ["trainer.max_epochs=3"])
    said = "'model.channels: [4]' on rank 0 and 'model.channels: [8]' on rank 1"
    both(program, (2,), said, [], ["model.channels=[8]"])
    both(program, (2,), "'load_from: \"a.pt\"' on rank 0 and 'nothing' on rank 1", ["--load-from", "a.pt"], [])
    both(program, (2,), "'nothing' on rank 0 and 'load_from: \"a.pt\"' on rank 1", [], ["--load-from", "a.pt"])
    both(program, (2,), "'no --resume' on rank 0 and '--resume auto' on rank 1", [], ["--resume", "auto"])
    folders = [program.folder / "rank_0", program.folder / "rank_1"]
    for folder in folders:
        folder.mkdir()
        (folder / "text.yaml").write_text(TEXT)
    (folders[0] / "text").write_text("abcd" * 100)
    how = {"config": "text.yaml", "folders": folders}
    both(program, (3,), "found no readable file 'text'", [], [], **how)
    (folders[1] / "text").write_text("abcd" * 90)
    both(program, (3,), "data.train has ", [], [], **how)
    (folders[1] / "text").write_text("abcdefgh" * 50)
    both(program, (2, 3), "rank", [], [], **how)


def wrong_launches(program):
    train = [program.path, "train", "run.yaml", "work_dir=wrong"]
    for variables, said in (({"RANK": "0"}, "found RANK without WORLD_SIZE"),
                            ({"WORLD_SIZE": "2"}, "found WORLD_SIZE without RANK"),
                            ({"RANK": "2", "WORLD_SIZE": "2"}, "found rank 2 of 2 processes"),
                            ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
                             "found 2 of 4 processes (MPICH) on this machine and no MASTER_ADDR"),
                            ({"RANK": "x", "WORLD_SIZE": "2"}, "found RANK 'x'")):
        text = program.run(train, 2, **variables)
        expect(said in text, f"expected '{said}' for {variables}:\n{text}")
    expect("--rank without --world-size" in program.run([*train, "--rank", 0], 2), "one flag alone is taken")
    for command in (["predict", "run.yaml"], ["compare", "run.yaml"], ["export", "a", "b.pt"]):
        text = program.run([program.path, *command], 2, RANK="0", WORLD_SIZE="2")
        expect(f"duet {command[0]} runs in one process" in text, f"expected a refusal of {command}:\n{text}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = program.run([*train, "--rank", 0, "--world-size", 2, "--master-port", port], 2)
        expect("rank 0 cannot listen at" in text and "--master-port" in text, f"expected the port to be named:\n{text}")
    for wrong, said in (("timeout=0", "distributed.timeout is 0"),
                        ("bucket_cap_mb=-1", "distributed.bucket_cap_mb is -1"),
                        ("first_bucket_mb=x", "distributed.first_bucket_mb is 'x'"),
                        ("start_timeot=3", "did you mean 'start_timeout'"),
                        ("find_unused_parameters=3", "expected true or false")):
        text = program.run([*train, f"distributed.{wrong}"], 2)
        expect(said in text, f"expected '{said}' for {wrong}:\n{text}")
    expect(not (program.folder / "wrong").exists(), "a refused launch made its work_dir")


def launch_command(program):
    usage = [program.path, "launch"]
    for wrong in ([], ["-n"], ["-n", 2], ["train", "run.yaml"], ["-n", 2, "predict", "run.yaml"],
                  ["-n", 0, "train", "run.yaml"], ["-n", "x", "train", "run.yaml"],
                  ["-n", 2, "--nnodes", 1, "train", "run.yaml"]):
        expect("expected duet launch -n N" in program.run([*usage, *wrong], 2), f"duet launch {wrong} is taken")
    if not program.torchrun:
        return
    path = {"PATH": f"{os.path.dirname(program.torchrun)}:{os.environ['PATH']}"}
    text = program.run([*usage, "-n2", *words("launched", "eager", 8)], **path)
    expect(text.count("rank 0 of 2 (torchrun)") == 1, f"expected torchrun to start two:\n{text}")
    # Its summary shows the error.
    text = program.run([*usage, "-n", 2, "--max-restarts", 0, "--", "train", "run.yaml", "model.type=Nope"], 1, **path)
    summary = text[text.index("Root Cause"):]
    expect("model.type is 'Nope'" in summary, f"expected the error in torchrun's summary:\n{text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = RankProgram(options.program, pathlib.Path(folder))
        (program.folder / "run.yaml").write_text(CONFIG)
        for name in ("torchrun", "mpirun"):
            if not getattr(program, name):
                print(f"no {name} here: left out", flush=True)
        for check in (wrong_launches, launch_command, mistakes_of_one_rank, same_weights, other_world_size,
                      restart_of_another_run, restart, lost_store):
            begun = time.monotonic()
            check(program)
            print(f"{check.__name__}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
