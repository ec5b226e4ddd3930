#!/usr/bin/env python3
"""Whatever is wrong with its input, the program ends with the right exit code and a message that helps.

usage: bad_input.py PROGRAM [--only TEXT]

Every message must name the file, line or key at fault; none may show LibTorch's stack trace or source lines.
"""

import argparse
import concurrent.futures
import glob
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import bad_config_cases
import bad_hook_cases
import bad_input_cases as cases
from bad_input_cases import CHECKPOINT, CONFIG, DATA

FORBIDDEN = re.compile(r"frame #|Exception raised from|INTERNAL ASSERT|terminate called|enforce fail|what\(\):|"
                       r"\.cpp:\d+|Sanitizer|runtime error:")
TEXT = "data={train: {type: Text, path: data/text, context: 8}%s}"


class Checks:
    def __init__(self, program, folder, only):
        self.program, self.folder, self.only = program, folder, only
        self.pool = concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        self.pending, self.failures, self.count = [], [], 0

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, capture_output=True, timeout=300)
        return done.returncode, done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")

    def check(self, code, pattern, *arguments):
        """Runs the program now; what it said."""
        self.count += 1
        found, text = self.run(*arguments)
        problems = []
        if found != code:
            problems.append(f"exit code {found}, expected {code}")
        if not re.search(pattern, text, re.DOTALL):
            problems.append(f"no match for: {pattern}")
        if FORBIDDEN.search(text):
            problems.append(f"shows {FORBIDDEN.search(text).group()!r}")
        if code not in (0, 75) and "error: " not in text and "Run with --help" not in text:
            problems.append("no error message")
        if problems:
            self.failures.append(f"duet {' '.join(map(str, arguments))}\n  {'; '.join(problems)}\n{text}")
        return text

    def later(self, code, pattern, *arguments):
        """Runs the program beside others."""
        if self.only in " ".join(map(str, arguments)):
            self.pending.append(self.pool.submit(self.check, code, pattern, *arguments))

    def require(self, condition, message):
        self.count += 1
        if not condition:
            self.failures.append(message)

    def wait(self):
        for future in self.pending:
            future.result()
        self.pending = []


def check_command_line(checks):
    checks.later(CONFIG, r"expected one of train, eval, predict, compare, explain, .*inspect, .*doctor")
    checks.later(CONFIG, r"unknown command 'trian'; .*did you mean 'train'", "trian", "base.yaml")
    checks.later(CONFIG, r"CONFIG is required", "train")
    checks.later(CONFIG, r"CHECKPOINT is required", "inspect")
    checks.later(CONFIG, r"not expected: --fast", "train", "base.yaml", "--fast")
    checks.later(CONFIG, r"--lr: a value of the config is set by optim_wrapper\.optimizer\.lr=VALUE",
                 "train", "base.yaml", "--lr", "0.1")
    checks.later(CONFIG, r"--trainer\.max_epochs: a value of the config is set by trainer\.max_epochs=VALUE",
                 "train", "base.yaml", "--mode", "graph", "--trainer.max_epochs", "3")
    checks.later(CONFIG, r"--max-epochs=3: a value of the config is set by trainer\.max_epochs=VALUE",
                 "train", "base.yaml", "--max-epochs=3")
    checks.later(CONFIG, r"--seed: a value of the config is set by seed=VALUE", "train", "base.yaml", "--seed", "3")
    checks.later(CONFIG, r"'lr' is no key at the top of a config; write optim_wrapper\.optimizer\.lr=0\.1",
                 "train", "base.yaml", "lr=0.1")
    checks.later(CONFIG, r"--mode: fast not in", "train", "base.yaml", "--mode", "fast")
    for steps in ("0", "-5", "many", "99999999999999999999"):
        checks.later(CONFIG, r"--steps: ", "compare", "base.yaml", "--steps", steps)
    for command in ("train", "eval", "compare"):
        checks.later(CONFIG, r"cannot open 'nowhere\.yaml'", command, "nowhere.yaml")
        checks.later(CONFIG, r"cannot read '\.': Is a directory, expected a YAML file", command, ".")
        checks.later(CONFIG, r"unknown key 'sed' in the config; .*did you mean 'seed'", command, "base.yaml", "sed=3")
        checks.later(CONFIG, r"cannot write 'data/images/x', .*change --json", command, "base.yaml",
                     "work_dir=runs/json", "--json", "data/images/x")
    # What the machine lacks is no error, but said plainly.
    libraries = subprocess.run(["ldd", checks.program], capture_output=True, text=True, check=False).stdout
    cuda = "(available|no device is visible)" if "libtorch_cuda" in libraries else "not in this LibTorch"
    checks.later(0, rf"cuda +{cuda}", "doctor")
    checks.later(1, r"writing '/dev/full' failed; .*change --json", "train", "base.yaml", "work_dir=runs/full",
                 "--json", "/dev/full")


def check_config_files(checks):
    for number, (old, new, pattern) in enumerate(cases.EDITS):
        name = f"edit{number}.yaml"
        text = cases.BASE.replace(old, new)
        assert text != cases.BASE
        (checks.folder / name).write_text(text, encoding="utf-8")
        first = text[:text.rindex(new)].count("\n") + 1
        last = first + 2 * new.count("\n")  # a further line may be the one at fault
        line = "|".join(map(str, range(first, last + 1)))
        checks.later(CONFIG, rf"{name}:({line})\b.*({pattern})", "train", name, "work_dir=runs/edit")
    files = {
        "empty.yaml": (b"", r"empty\.yaml:1: the config is empty"),
        "comment.yaml": (b"# nothing\n", r"comment\.yaml:1: the config is empty"),
        "garbage.yaml": (random.Random(1).randbytes(3000), r"garbage\.yaml:\d+"),
        "program.yaml": (b"\x7fELF\x02\x01\x01\0" + bytes(500), r"program\.yaml:1:\d+: found the control character"),
        "list.yaml": (b"- a\n- b\n", r"list\.yaml:1: the config is no map"),
        "word.yaml": (b"hello", r"word\.yaml:1: the config is no map"),
        "bracket.yaml": (b"model: {type: Mlp\ntrainer: {}\n", r"bracket\.yaml:2:\d+: this is not YAML"),
        "quote.yaml": (b'work_dir: "runs\nseed: 1\n', r"quote\.yaml:\d+:\d+: this is not YAML"),
        "loop.yaml": (b"model: &a\n  type: *a\n  b: &b [*a, *a]\n", r"loop\.yaml:\d+"),
        "bomb.yaml": (b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
            b"%c: &%c [%s]\n" % (i + 1, i + 1, b",".join([b"*%c" % i] * 9)) for i in range(97, 106)),
                      r"bomb\.yaml:\d+.*(too deeply|nodes)"),
        "deep.yaml": (b"a: " + b"[" * 200 + b"]" * 200 + b"\n", r"deep\.yaml:\d+.*nested too deeply"),
    }
    for name, (content, pattern) in files.items():
        (checks.folder / name).write_bytes(content)
        checks.later(CONFIG, pattern, "train", name, "work_dir=runs/file")


def check_values(checks):
    for number, (override, code, pattern) in enumerate(cases.OVERRIDES + bad_hook_cases.OVERRIDES):
        checks.later(code, pattern, "train", "base.yaml", f"work_dir=runs/{number}", override)
    # What only one of the modes meets, or meets in another place.
    for number, override in enumerate((
            "model.image_size=30", "data.train={type: Safetensors, path: data/bad_label.safetensors, batch_size: 8, shuffle: false}")):
        (_, code, pattern), = [row for row in cases.OVERRIDES if row[0] == override]
        checks.later(code, pattern, "train", "base.yaml", f"work_dir=runs/graph{number}", "--mode", "graph", override)
        checks.later(code, pattern, "compare", "base.yaml", override)
    gpt = "model={type: Gpt, n_layer: 1, n_head: 1, n_embd: 8, context: %d%s}"
    run = ("train", "base.yaml", "work_dir=runs/text", "evaluator=null")
    checks.later(CONFIG, r"model\.vocab_size is 9, but the text of data\.train has 15 characters; remove the key", *run,
                 gpt % (8, ", vocab_size: 9"), TEXT % "")
    checks.later(CONFIG, r"model\.vocab_size is 0, .*set the size here", *run, gpt % (8, ""))
    checks.later(CONFIG, r"shape \[1, 8\], .*context = 4; set model\.context", *run, gpt % (4, ""), TEXT % "",
                 "work_dir=runs/short")  # it comes as far as a run, which would have the others wait
    checks.later(CONFIG, r"data\.val: .*'data/other_text': found byte \d+ at position \d+, .*split of the same file", *run,
                 gpt % (8, ""), TEXT % ", val: {type: Text, path: data/other_text, context: 8}")
    checks.later(CONFIG, r"n_embd is 8, expected a multiple of n_head = 3", *run,
                 "model={type: Gpt, n_embd: 8, n_head: 3}", TEXT % "")
    for file, pattern in (("nowhere", r"no readable file 'data/nowhere'"),
                          ("empty", r"'data/empty': found 0 characters")):
        checks.later(DATA, pattern, *run, gpt % (8, ""), TEXT.replace("data/text", f"data/{file}") % "")


def check_inheritance(checks):
    os.environ.update(bad_config_cases.ENVIRONMENT)
    for number, (files, overrides, pattern) in enumerate(bad_config_cases.CASES):
        folder = f"config{number}"
        for name, text in files.items():
            path = checks.folder / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        checks.later(CONFIG, pattern.replace("{c}", folder), "train", f"{folder}/c.yaml", *overrides)
    checks.later(CONFIG, r"found no key or type 'trainr', .*did you mean 'trainer'", "help", "trainr")
    checks.later(CONFIG, r"found no key or type 'Adm', .*did you mean 'Adam'", "help", "Adm")
    checks.later(0, r"max_steps +integer, at least 0", "help", "trainer")
    checks.later(0, r"optim_wrapper\.optimizer\.lr +number", "help", "lr")
    checks.later(0, r"ImageFolder\.masks +text", "help", "data.train.masks")
    checks.later(0, r"ImageFolder\.masks +text", "help", "data.val.masks")
    checks.later(0, r"RMSprop\.momentum .*SGD\.momentum ", "help", "momentum")
    checks.later(CONFIG, r"did you mean 'ImageFolder\.masks'", "help", "ImageFolder.mask")
    checks.later(0, r"Usage: duet report .*--output FILE", "help", "report")
    checks.later(0, r"type AdamW:.*betas +list of numbers, in \[0, 1\); default \[0\.9, 0\.999\]", "help", "AdamW")


def check_checkpoints(checks):
    checks.check(0, r"finished after 6 steps", "train", "base.yaml", "work_dir=good", "trainer.max_steps=6")
    good = checks.folder / "good" / "checkpoints"
    for arguments in (("inspect", "nowhere"), ("train", "base.yaml", "work_dir=runs/none", "--resume", "nowhere"),
                      ("eval", "base.yaml", "work_dir=good", "--checkpoint", "nowhere")):
        checks.later(CHECKPOINT, r"'nowhere' does not exist; name a folder", *arguments)
    checks.later(CHECKPOINT, r"'base\.yaml' is a file, expected a folder", "inspect", "base.yaml")
    checks.later(CHECKPOINT, r"'data' holds neither manifest\.json nor folders step-N", "inspect", "data")
    checks.later(CHECKPOINT, r"no checkpoint in 'runs/none/checkpoints'; train first", "eval", "base.yaml",
                 "work_dir=runs/none")
    checks.later(CHECKPOINT, r"no best checkpoint in", "eval", "base.yaml", "work_dir=good", "--checkpoint", "best")

    other = r"belong to another model:.*conv1\.weight: Float\[4, 1, 3, 3\] in the checkpoint, Float\[8, .*head\.weight"
    checks.later(CHECKPOINT, other, "eval", "base.yaml", "work_dir=good", "model.channels=[8]")
    for number, (pattern, *overrides) in enumerate((
            (other, "model.channels=[8]"),
            (r"missing in the checkpoint: hidden1\.weight.*unknown to the model: conv1\.weight", "model={type: Mlp}"),
            (r"optimizer's state does not fit: .*use the optimizer", "optim_wrapper.optimizer={type: SGD}"),
            (r"dataset of 30 samples, expected 64 as in the checkpoint", "data.train.limit=30", "trainer.max_steps=8"))):
        # They come as far as a run, which has its work_dir for itself.
        checks.later(CHECKPOINT, pattern, "train", "base.yaml", f"work_dir=runs/other{number}", "--resume", "good/checkpoints",
                     *overrides)
    checks.wait()

    # Damage to the newest one: inspect names it, resume passes over it.
    generator = random.Random(2)
    damaged = []
    for file in ("model.safetensors", "state.safetensors", "state.json", "manifest.json"):
        for damage in ("flipped", "cut", "longer", "missing", "folder"):
            name = f"{damage}_{file}"
            if checks.only not in name:
                continue
            shutil.copytree(good, checks.folder / name / "checkpoints")
            path = checks.folder / name / "checkpoints" / "step-6" / file
            content = bytearray(path.read_bytes())
            if damage == "flipped":
                # Behind the header, which names no tensor when it changes.
                at = generator.randrange(len(content) * 9 // 10, len(content))
                content[at] ^= 1 << generator.randrange(8)
            elif damage == "cut":
                content = content[:generator.randrange(len(content))]
            elif damage == "longer":
                content += b"x"
            path.unlink()
            if damage == "folder":
                path.mkdir()
            elif damage != "missing":
                path.write_bytes(content)
            tensor = r": tensor '\w+[\w.]*' changed after it was saved" if name.startswith("flipped_") and \
                file.endswith("safetensors") else ""
            checks.later(CHECKPOINT, rf"step-6.*{file}.*{tensor}", "inspect", f"{name}/checkpoints/step-6")
            damaged.append(name)
    checks.wait()  # a resume sets the damaged one aside
    for name in damaged:
        checks.later(0, r"step-6.*passing over it.*resumed from '[^']*step-4' after step 4", "train", "base.yaml",
                     f"work_dir={name}", "trainer.max_steps=5", "--resume", "auto")
    checks.wait()

    # Nothing but damage
    shutil.copytree(good, checks.folder / "damaged" / "checkpoints")
    for path in glob.glob(str(checks.folder / "damaged" / "checkpoints" / "step-*" / "model.safetensors")):
        os.truncate(path, 1000)
    none = r"step-6/model\.safetensors'.*none of the 3 checkpoints"
    checks.later(CHECKPOINT, none, "train", "base.yaml", "work_dir=damaged", "--resume", "auto")
    checks.later(CHECKPOINT, none, "inspect", "damaged/checkpoints")
    checks.later(CHECKPOINT, none, "eval", "base.yaml", "work_dir=damaged")
    # A checkpoint under another one's name
    shutil.copytree(good / "step-4", checks.folder / "renamed" / "step-9")
    checks.later(CHECKPOINT, r"manifest is that of step 4", "inspect", "renamed/step-9")
    checks.wait()


# In a mount namespace of its own: a small file system, filled once two checkpoints are there.
FULL_DISK = r"""
set -e
mount -t tmpfs -o size=600k tmpfs "$2"
train() { "$1" train base.yaml work_dir="$2" trainer.max_steps="$3" default_hooks.checkpoint.max_keep=3 --resume auto; }
train "$1" "$2" 4
head -c 900000 /dev/zero > "$2/filler" || true
echo "== full"
code=0; train "$1" "$2" 12 || code=$?
echo "== code $code"
ls "$2/checkpoints"
"$1" inspect "$2/checkpoints"
rm "$2/filler"
echo "== room"
train "$1" "$2" 12
ls "$2/checkpoints"
"""


def check_full_disk(checks):
    target = checks.folder / "small"
    target.mkdir()
    for namespace in (("unshare", "-m"), ("unshare", "-rm")):
        probe = [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(target)]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            break
    else:
        print("skipped: a full disk (needs the right to mount)")
        return
    done = subprocess.run([*namespace, "bash", "-c", FULL_DISK, "full_disk", checks.program, "small"],
                          cwd=checks.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    text = done.stdout
    parts = re.split(r"== (?:full|code \d+|room)\n", text)
    checks.require(done.returncode == 0 and len(parts) == 4, f"a full disk: exit code {done.returncode}\n{text}")
    if len(parts) != 4:
        return
    _, full, left, room = parts
    checks.require("== code 4\n" in text, f"a full disk: expected exit code 4 at the end\n{full}")
    checks.require(len(re.findall(r"step (?:6|8|10) was not saved: .*; training goes on", full)) == 3,
                   f"a full disk: expected training to go on\n{full}")
    checks.require(re.search(r"error: .*No space left on device.*previous checkpoint is untouched", full),
                   f"a full disk: expected the reason\n{full}")
    intact = "step 4" in left and "every hash matches" in left
    checks.require(intact and left.split()[:3] == ["latest", "step-2", "step-4"],
                   f"a full disk: expected step-2 and step-4 alone, intact\n{left}")
    checks.require("resumed from 'small/checkpoints/step-4'" in room and "step-12" in room.split(),
                   f"a full disk: expected to go on once there is room\n{room}")
    checks.require(not FORBIDDEN.search(text), f"a full disk: shows a stack trace\n{text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="only the cases whose arguments contain this")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    # An allocation beyond any memory is to fail as it does without the sanitizer.
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases.write_data(folder / "data")
        (folder / "base.yaml").write_text(cases.BASE, encoding="utf-8")
        checks = Checks(os.path.abspath(options.program), folder, options.only)
        checks.check(0, r"finished after 4 steps", "train", "base.yaml", "work_dir=runs/base")
        check_command_line(checks)
        check_config_files(checks)
        check_values(checks)
        check_inheritance(checks)
        checks.wait()
        check_checkpoints(checks)
        check_full_disk(checks)
    for failure in checks.failures:
        print(f"FAILED: {failure}\n")
    if checks.failures:
        sys.exit(f"{len(checks.failures)} of {checks.count} checks failed")
    print(f"{checks.count} checks passed")


if __name__ == "__main__":
    main()
