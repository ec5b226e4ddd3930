"""R5: disks without room, file systems that take no more files or nothing at all, and limits.

A run that has saved twice meets it, goes on to its end and says that it could not save, with exit code 4; what cannot even
begin ends with a message. The checkpoint before loads bit for bit. Once there is room again the run goes on to the
unbroken end.
"""

import errno
import pathlib
import resource
import shutil
import subprocess

from small_run import LONGER, SmallRun
from torture import leftovers, steps_in

FOR_GOOD = 1_000_000
# How the file system of each case is made.
MOUNTS = {"full": "size=2m", "without inodes": "nr_inodes=60", "read-only": "size=2m"}


class Disks:
    """A server of forks with small file systems of its own."""

    def __init__(self, torture):
        self.torture = torture
        self.namespace = next(filter(self.can_mount, (("unshare", "-m"), ("unshare", "-rm"))), None)
        if self.namespace is None:
            return
        mounts = []
        for name, options in MOUNTS.items():
            self.folder(name).mkdir()
            mounts += [f"mount -t tmpfs -o {options} tmpfs '{self.folder(name)}'"]
        self.server = torture.server(1, before=[*self.namespace, "bash", "-c", "; ".join([*mounts, 'exec "$@"']), "bash"])

    def can_mount(self, namespace):
        line = [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(self.torture.folder)]
        return shutil.which("unshare") and subprocess.run(line, capture_output=True, check=False).returncode == 0

    def folder(self, name):
        return self.torture.folder / f"disk_{name.replace(' ', '_')}"

    def seen(self, name):
        """The same as the server sees it."""
        return pathlib.Path(f"/proc/{self.server.process.pid}/root{self.folder(name)}")

    def inside(self, *words):
        keep = ("-U", "--preserve-credentials") if "-rm" in self.namespace else ()
        subprocess.run(["nsenter", "-t", str(self.server.process.pid), *keep, "-m", *words], check=True, capture_output=True)

    def spoil(self, name):
        filler = self.seen(name) / "filler"
        if name == "read-only":
            return self.inside("mount", "-o", "remount,ro", str(self.folder(name)))
        filler.mkdir()
        try:
            if name == "full":
                (filler / "0").write_bytes(bytes(2 << 20))
            for number in range(1000):
                (filler / str(number)).touch()
        except OSError as error:
            self.torture.require(error.errno == errno.ENOSPC, f"not full: {error}")
        return None

    def mend(self, name):
        if name == "read-only":
            self.inside("mount", "-o", "remount,rw", str(self.folder(name)))
        else:
            shutil.rmtree(self.seen(name) / "filler")


def expect_refusal(torture, small, done):
    small.check_message(done)
    torture.require(done.code == 4 and "not saved" in done.text, "expected exit code 4, and a word on what was not saved", done)


def on_a_disk(torture, small, disks, name, more):
    """A run on a file system that takes nothing from step 4 on, and then something again."""
    work_dir, seen = disks.folder(name) / "run", disks.seen(name) / "run"
    words = ("train", "run.yaml", f"work_dir={work_dir}", "--json", "disk.json", *more)
    done = torture.run(*words, "trainer.max_steps=4", server=disks.server)
    torture.require(done.code == 0, "no run while there was room", done)
    disks.spoil(name)
    done = torture.run(*words, *LONGER, "--resume", "auto", server=disks.server)
    if name == "read-only":  # it cannot even keep others out of its folder
        small.check_message(done)
        torture.require(done.code not in (0, 1), "expected an exit code with a meaning", done)
    else:
        expect_refusal(torture, small, done)
    left = steps_in(seen / "checkpoints")
    torture.require(left == [2, 4], f"expected step-2 and step-4, found {left}", done)
    torture.require((seen / "checkpoints/step-4/model.safetensors").read_bytes() == small.weights[4], "other weights", done)
    disks.mend(name)
    done = torture.run(*words, *LONGER, "--resume", "auto", server=disks.server)
    torture.require(done.code == 0 and small.hash_at(torture.folder / "disk.json") == small.expected, "no way back", done)
    torture.require(not leftovers(seen / "checkpoints"), f"left behind: {leftovers(seen / 'checkpoints')}", done)
    shutil.rmtree(seen)


def with_limit(torture, small, more):
    """No file may become as long as the weights are (RLIMIT_FSIZE)."""
    name, server = small.copy(), torture.server()
    limit = (small.checkpoints(name) / "step-4/model.safetensors").stat().st_size // 2
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    done = torture.run(*small.words(name), *LONGER, *more)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    expect_refusal(torture, small, done)
    small.check_intact(name, done)


def without_rights(torture, small, kind, more):
    """Every call on the folder of checkpoints after those of a random part of a run is refused, as by a quota."""
    name = small.copy()
    done = torture.run(*small.words(name), *LONGER, *more, TORTURE_UNDER=small.checkpoints(name),
                       TORTURE_FAULT=f"{torture.random.randint(0, 60)}:{getattr(errno, kind)}:{FOR_GOOD}")
    small.check_message(done)
    torture.require(done.code == 4, "expected exit code 4", done)
    small.check_intact(name, done)


def ways(torture):
    """Ways to save that a case is tried in: all, or one."""
    every = [("--mode", mode, f"default_hooks.checkpoint.async={later}") for mode in ("eager", "graph") for later in ("true", "false")]
    return every if torture.long else [torture.random.choice(every)]


def run(torture):
    small, disks, made = SmallRun(torture), Disks(torture), 0
    if disks.namespace is None:
        torture.left_out.append("file systems of their own (needs the right to mount)")
    for name in MOUNTS if disks.namespace else ():
        for more in ways(torture):
            torture.case = f"a file system that is {name}, {' '.join(more)}"
            on_a_disk(torture, small, disks, name, more)
            made += 1
    for more in ways(torture):
        torture.case = f"a limit on the length of files, {' '.join(more)}"
        with_limit(torture, small, more)
        made += 1
    for kind in ("EDQUOT", "EROFS", "EACCES"):
        for more in ways(torture) * torture.count(1, 10):
            torture.case = f"{kind} for good, {' '.join(more)}"
            without_rights(torture, small, kind, more)
            made += 1
    return f"{made}/{made} disks and limits: each was named, the checkpoint before loaded bit for bit, the run went on to the same end"
