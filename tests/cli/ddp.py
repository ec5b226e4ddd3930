#!/usr/bin/env python3
"""Several processes of the program train one model: under torchrun, mpirun, duet launch, and started by hand.

usage: ddp.py PROGRAM

Both modes and all launchers end with the same weights; a run goes on with another number of processes; what is wrong with the
call, config or data of one process ends all of them, with a message each and without hanging. Launchers that are not there are
left out, and said so.
"""

import atexit
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import time

from processes import end
from program import Program, run_checks

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
        self.torchrun = shutil.which("torchrun")
        self.mpirun = shutil.which("mpirun")
        self.write("run.yaml", CONFIG)

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
            raise AssertionError(f"{process.args} hangs:\n{process.communicate()[0]}") from None
        if process.args[0] != self.torchrun:  # which has a c10d of its own
            for trace in ("frame #", "Exception raised from"):
                assert trace not in text, f"{process.args} shows a stack trace:\n{text}"
        return process.returncode, text

    def run(self, words, code=0, **variables):
        found, text = self.finish(self.start(words, **variables))
        assert found == code, f"expected exit code {code} of {words}, found {found}:\n{text}"
        return text

    def by_torchrun(self, count, *words, options=()):
        return [self.torchrun, "--no-python", "--nproc-per-node", count, "--standalone", *options, self.path, *words]

    def by_mpirun(self, count, *words):
        return [self.mpirun, "--allow-run-as-root", "--oversubscribe", "-np", count, self.path, *words]

    def start_by_hand(self, *ranks, folders=(None, None)):
        """A process for each list of words: no launcher's Python, which takes seconds to start."""
        group = ["--world-size", len(ranks), "--master-port", free_port()]
        return [self.start([self.path, *own, "--rank", i, *group], cwd=folders[i]) for i, own in enumerate(ranks)]

    def by_hand(self, *ranks, **how):
        """Exit code and output of each."""
        return [self.finish(process) for process in self.start_by_hand(*ranks, **how)]

    def by_two(self, *own):
        """What both say who do the same."""
        answers = self.by_hand(own, own)
        assert [code for code, _ in answers] == [0, 0], f"{own}: {answers}"
        return answers[0][1] + answers[1][1]

    def wait_until_saved(self, name, step, *processes):
        """Until a checkpoint of that step or of a later one is there; False if a process ends before."""
        while newest_checkpoint(self.folder / name) < step:
            if any(process.poll() is not None for process in processes):
                return False
            time.sleep(0.005)
        return True

    def result(self, name="result"):
        return json.loads((self.folder / f"{name}.json").read_text())


def words(work_dir, mode="eager", batch_size=16, *further):
    return ("train", "run.yaml", f"work_dir={work_dir}", "--json", f"{work_dir}.json", "--mode", mode,
            f"data.train.batch_size={batch_size}", f"data.val.batch_size={batch_size}", *further)


def launchers(program, count):
    found = {}
    if program.torchrun:
        path = {"PATH": f"{os.path.dirname(program.torchrun)}:{os.environ['PATH']}"}
        found["torchrun"] = lambda *own: program.run(program.by_torchrun(count, *own))
        found["launch"] = lambda *own: program.run([program.path, "launch", f"-n{count}", *own], **path)
    if program.mpirun:
        found["mpirun"] = lambda *own: program.run(program.by_mpirun(count, *own))
    return found


def same_weights(program):
    """In both modes, and under every launcher."""
    hashes = {}
    by_hand = [("hand", "eager", program.by_two), ("hand", "graph", program.by_two)]
    for launcher, mode, run in by_hand + [(name, "graph", run) for name, run in launchers(program, 2).items()]:
        name = f"{launcher}_{mode}"
        text = run(*words(name, mode, 8))
        hashes[name] = program.result(name)["weights_hash"]
        for line in ("finished after 26 steps", "val  step 26/26", "rank 0 of 2"):
            assert text.count(line) == 1, f"expected '{line}' once:\n{text}"
    assert len(set(hashes.values())) == 1, f"expected the same weights of all: {hashes}"


def other_world_size(program):
    """A run of two processes goes on with one, with the same samples per step, and is evaluated by two as by one."""
    program.by_two(*words("two", "eager", 8, "trainer.max_steps=18"))
    text = program.run([program.path, *words("two", "graph", 16, "--resume", "auto")])
    assert "resumed from 'two/" in text and "after step 18" in text, f"expected a resume:\n{text}"
    assert program.result("two")["steps"] == 26, f"expected 26 steps:\n{text}"
    text = program.by_two("eval", "run.yaml", "work_dir=two", "--json", "eval_2.json")
    program.run([program.path, "eval", "run.yaml", "work_dir=two", "--json", "eval_1.json"])
    two, one = program.result("eval_2")["metrics"], program.result("eval_1")["metrics"]
    assert two["accuracy"] == one["accuracy"] and abs(two["loss"] - one["loss"]) < 1e-5, f"eval differs: {two}, {one}"
    assert text.count("samples of data.val") == 1, f"expected one summary:\n{text}"


def restart_of_another_run(program):
    """A launcher that starts a run anew goes on from that run, not from one that was there before."""
    def run(*more, **launch):
        variables = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "first", **launch}
        return program.run([program.path, *words("anew"), *more], **variables)

    run()
    for count in ("1", "0"):  # 0: machines have come or gone
        text = run(TORCHELASTIC_RESTART_COUNT=count)
        assert f"is started anew (restart {count}): --resume auto" in text and "after step 26" in text, f"no resume:\n{text}"
    text = run("--resume", "none", TORCHELASTIC_RESTART_COUNT="1")
    assert "resumed from" not in text and "checkpoints.1'" in text, f"expected --resume none to hold:\n{text}"
    text = run(TORCHELASTIC_RUN_ID="second", TORCHELASTIC_RESTART_COUNT="1")
    assert "resumed from" not in text and "checkpoints.2'" in text, f"expected the other run to be set aside:\n{text}"


def lost_store(program):
    """Rank 0, which holds the store, is killed: the other names it, in one message and within seconds."""
    own = words("lost", "eager", 8, f"trainer.max_epochs={NO_END}")
    first, other = program.start_by_hand(own, own)
    assert program.wait_until_saved("lost", 5, first, other), "the run ended early"
    first.kill()
    begun = time.monotonic()
    program.finish(first)
    code, text = program.finish(other)
    assert time.monotonic() - begun < 10, f"the other rank ended after {time.monotonic() - begun:.1f} s"
    errors = [line for line in text.splitlines() if line.startswith("error: rank 1: ")]
    assert code == 6 and len(errors) == 1 and "rank 0" in errors[0], f"expected one error with code 6, found {code}:\n{text}"


def both(program, codes, pattern, *ranks, config="run.yaml", **how):
    calls = [["train", config, "work_dir=hand", *own] for own in ranks]
    for i, (code, text) in enumerate(program.by_hand(*calls, **how)):
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        assert code in codes, f"expected exit code {codes} of rank {i} for {ranks}, found {code}:\n{text}"
        told = len(lines) == 1 and pattern in lines[0]
        assert told, f"expected one error with '{pattern}' of rank {i} for {ranks}:\n{text}"
        assert lines[0].startswith("error: rank 1: ") == (i == 1), f"expected the rank before the error:\n{text}"


def mistakes_of_one_rank(program):
    for pattern, *ranks in (
            ("unknown key 'max_epoch' in trainer", [], ["trainer.max_epoch=3"]),
            ("'load_from: \"a.pt\"' on rank 0 and 'nothing' on rank 1", ["--load-from", "a.pt"], []),
            ("'no --resume' on rank 0 and '--resume auto' on rank 1", [], ["--resume", "auto"])):
        both(program, (2,), pattern, *ranks)
    folders = [program.folder / "rank_0", program.folder / "rank_1"]
    for folder in folders:
        folder.mkdir()
        (folder / "text.yaml").write_text(TEXT)
    (folders[0] / "text").write_text("abcd" * 100)
    how = {"config": "text.yaml", "folders": folders}
    both(program, (3,), "cannot open 'text'", [], [], **how)
    (folders[1] / "text").write_text("abcd" * 90)
    both(program, (3,), "data.train has ", [], [], **how)
    (folders[1] / "text").write_text("abcdefgh" * 50)
    both(program, (2, 3), "rank", [], [], **how)


def nobody_to_tell(program):
    """The error is shown while the process waits for the others, which may be started by hand; wrong words end it at once."""
    wrong = [program.path, "train", "nowhere.yaml", "--rank", 1, "--world-size", 2, "--master-port", free_port()]
    process = program.start(wrong)
    text = ""
    for line in process.stdout:
        text += line
        if "waiting for the other ranks" in line:
            break
    assert "rank 1: " in text and "nowhere.yaml" in text, f"expected the error before the wait:\n{text}"
    process.kill()
    process.wait()
    text = program.run([program.path, "train", "run.yaml", "--no-such-flag"], 2, RANK="0", WORLD_SIZE="2")
    assert "Run with --help" in text and "waiting" not in text, f"expected it to end at once:\n{text}"


def error_of_a_launch(program):
    """torchrun's summary shows it."""
    if not program.torchrun:
        return
    path = {"PATH": f"{os.path.dirname(program.torchrun)}:{os.environ['PATH']}"}
    text = program.run([program.path, "launch", "-n", 2, "--max-restarts", 0, "--", "train", "run.yaml", "model.type=Nope"], 1, **path)
    assert "model.type is 'Nope'" in text[text.index("Root Cause"):], f"expected the error in torchrun's summary:\n{text}"


def launchers_are_here(program):
    for name in ("torchrun", "mpirun"):
        if not getattr(program, name):
            print(f"no {name} here: left out", flush=True)


if __name__ == "__main__":
    run_checks(RankProgram, launchers_are_here, mistakes_of_one_rank, nobody_to_tell, error_of_a_launch, same_weights, other_world_size,
               restart_of_another_run, lost_store)
