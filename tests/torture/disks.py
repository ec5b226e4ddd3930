"""R5: disks without room, file systems that take no more files or nothing at all, and a limit on the length of files.

A run that has saved twice meets it, goes on to its end and says that it could not save, with exit code 4; what cannot even
begin ends with a message. The checkpoint before loads bit for bit. Once there is room again the run goes on to the
unbroken end.
"""

import re
import resource
import shutil
import subprocess

from small_run import LONGER, SmallRun
from torture import Done, leftovers, steps_in

# How it is made, what makes it useless, and what mends it, in its folder.
DISKS = {
    "full": ("size=2m", "head -c 3M /dev/zero > filler || true", "rm filler"),
    "without inodes": ("nr_inodes=60", "for i in {1..99}; do touch filler$i || break; done", "rm filler*"),
    "read-only": ("size=2m", "mount -o remount,ro .", "mount -o remount,rw ."),
}
SCRIPT = """
set -e
mount -t tmpfs -o {options} tmpfs disk
{train} trainer.max_steps=4
(cd disk; {spoil}) 2> /dev/null
set +e
{train} {longer} --resume auto
echo "exit code $?"
set -e
cp -r disk/run/checkpoints kept
(cd disk; {mend})
{train} {longer} --resume auto 2> /dev/null
cp -r disk/run/checkpoints mended
"""
NAMESPACES = (("unshare", "-m"), ("unshare", "-rm"))


def can_mount(torture, namespace):
    line = [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(torture.folder)]
    return shutil.which("unshare") and subprocess.run(line, capture_output=True, check=False).returncode == 0


def on_a_disk(torture, small, namespace, name, words):
    """A run on a file system that takes nothing from step 4 on, and then something again."""
    options, spoil, mend = DISKS[name]
    for folder in ("disk", "kept", "mended"):
        shutil.rmtree(torture.folder / folder, ignore_errors=True)
    (torture.folder / "disk").mkdir()
    train = f"{torture.program} train run.yaml work_dir=disk/run --json disk.json {' '.join(words)}"
    script = SCRIPT.format(options=options, train=train, spoil=spoil, mend=mend, longer=" ".join(LONGER))
    run = subprocess.run([*namespace, "bash", "-c", script], cwd=torture.folder, capture_output=True, text=True, check=False)
    code = re.search(r"^exit code (\d+)", run.stdout, re.M)
    done = Done(["on a disk"], int(code.group(1)) if code else -1, run.stderr)
    torture.require(code and run.returncode == 0, "no run while there was room, or no way back", done)
    small.check_message(done)
    if name == "read-only":  # it cannot even keep others out of its folder
        torture.require(done.code not in (0, 1), "expected an exit code with a meaning", done)
    else:
        check_refusal(torture, done)
    left = steps_in(torture.folder / "kept")
    torture.require(left == [2, 4], f"expected step-2 and step-4, found {left}", done)
    weights = (torture.folder / "kept/step-4/model.safetensors").read_bytes()
    torture.require(weights == small.weights[4], "other weights", done)
    torture.require(small.hash_of("disk") == small.expected, "another end", done)
    torture.require(not leftovers(torture.folder / "mended"), f"left behind: {leftovers(torture.folder / 'mended')}", done)


def check_refusal(torture, done):
    torture.require(done.code == 4 and "not saved" in done.text, "expected exit code 4, and a word on what was not saved", done)


def with_limit(torture, small, words):
    """No file may become as long as the weights are (RLIMIT_FSIZE)."""
    name, server = small.copy(), torture.server()
    limit = (small.checkpoints(name) / "step-4/model.safetensors").stat().st_size // 2
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    done = torture.run(*small.words(name), *LONGER, *words)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    small.check_message(done)
    check_refusal(torture, done)
    small.check_intact(name, done)


def run(torture):
    small, made = SmallRun(torture), 0
    namespace = next((words for words in NAMESPACES if can_mount(torture, words)), None)
    if namespace is None:
        torture.left_out.append("file systems of their own (needs the right to mount)")
    ways = [("--mode", mode, f"default_hooks.checkpoint.async={later}") for mode in ("eager", "graph") for later in ("true", "false")]
    for name in ("a limit on the length of files", *(DISKS if namespace else ())):
        for words in ways if torture.long else [torture.random.choice(ways)]:
            torture.case = f"{name}, {' '.join(words)}"
            on_a_disk(torture, small, namespace, name, words) if name in DISKS else with_limit(torture, small, words)
            made += 1
    return f"{made}/{made} disks and limits: each was named, the checkpoint before loaded bit for bit, the run went on to the same end"
