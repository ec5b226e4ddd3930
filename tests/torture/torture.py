"""What the tests of the programme share: forks of the program that start in milliseconds, counts, and how they fail."""

import contextlib
import array
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cli"), str(HERE.parent / "support")]


class Failed(Exception):
    """A case that did not go as it must."""


class Forked:
    """A child of a server, as subprocess.Popen would give it."""

    def __init__(self, server, pid, stderr):
        self.server, self.pid, self.stderr, self.returncode = server, pid, stderr, None

    def wait(self, timeout=None):
        if self.returncode is None:
            self.server.settimeout(timeout)
            try:
                status = self.server.recv(4)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("duet", timeout) from error
            if len(status) != 4:
                raise Failed("the server of forks has died")
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder))
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now, and its server has waited for it
                os.kill(self.pid, number)


class Server:
    """Starts the program once and then forks it for every call: one at a time."""

    def __init__(self, program, preload):
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.current = None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        line = ["env", f"LD_PRELOAD={preload}", f"TORTURE_SERVER={other.fileno()}", program]
        self.process = subprocess.Popen(line, pass_fds=[other.fileno()], env=environment)
        other.close()

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()

    def popen(self, words, cwd=".", env=None, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE):
        """words[0] is the program. `env` holds further variables; `stdout` may be DEVNULL or STDOUT: with stderr."""
        if self.current is not None and self.current.poll() is None:
            raise Failed(f"the fork before has not ended: {words}")
        del stderr
        ends = os.pipe()
        null = os.open(os.devnull, os.O_WRONLY)
        parts = [str(cwd), *(f"{name}={value}" for name, value in (env or {}).items()), "", *map(str, words[1:])]
        files = array.array("i", [ends[1] if stdout == subprocess.STDOUT else null, ends[1]])
        self.socket.settimeout(60)
        self.socket.sendmsg(["\0".join(parts).encode() + b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        os.close(ends[1])
        os.close(null)
        pid = int.from_bytes(self.socket.recv(4), sys.byteorder, signed=True)
        if pid <= 0:
            raise Failed("the program cannot be forked")
        self.current = Forked(self.socket, pid, os.fdopen(ends[0], "rb", buffering=0))
        return self.current


class Done:
    """A call that has ended."""

    def __init__(self, words, code, text):
        self.words, self.code, self.text = list(map(str, words)), code, text

    def __str__(self):
        return f"duet {' '.join(self.words)}: exit code {self.code}\n{self.text}"


class Torture:
    """A test of the programme while it runs: its folder, random numbers and programs."""

    def __init__(self, name, options, folder):
        self.long, self.seed, self.folder = options.long, options.seed, pathlib.Path(folder)
        self.random = random.Random(f"{name} {options.seed}")
        self.build = options.build.resolve()
        self.program, self.preload = str(self.build / "cli" / "duet"), self.build / "tests" / "libduet_torture.so"
        self.case = "set-up"
        self.left_out = []
        self.servers = {}

    def server(self, number=0, program="duet"):
        """`program`: or "duet_faulty", which knows faults."""
        key = (number, program)
        if key not in self.servers:
            path = self.program if program == "duet" else self.built(program)
            self.servers[key] = Server(path, self.preload)
        return self.servers[key]

    def built(self, name):
        path = self.build / "tests" / name
        self.require(path.exists(), f"'{path}' is not built")
        return str(path)

    def close(self):
        for server in self.servers.values():
            server.close()

    def run(self, *words, seconds=120, server=None, signals=(signal.SIGKILL,), **variables):
        """Ends within `seconds`, and by no signal but these."""
        server = server or self.server()
        process = server.popen([self.program, *words], cwd=self.folder, env=variables, stdout=subprocess.STDOUT)
        return self.finish(process, words, seconds, signals)

    def finish(self, process, words, seconds=120, signals=(signal.SIGKILL,)):
        text = read_all(process, seconds)
        done = Done(words, process.wait(seconds), text)
        self.require(done.code >= 0 or -done.code in signals, f"ended by signal {-done.code}", done)
        return done

    def good(self, *words, **variables):
        done = self.run(*words, **variables)
        self.require(done.code == 0, "expected exit code 0", done)
        return done

    def require(self, condition, message, done=""):
        if not condition:
            raise Failed(f"{message}\n{done}")

    def count(self, short, long):
        return long if self.long else short


def read_all(process, seconds):
    """What it says until it ends. A fork that hangs is killed."""
    text, end = b"", time.monotonic() + seconds
    os.set_blocking(process.stderr.fileno(), False)
    while True:
        part = process.stderr.read(1 << 16)
        if part == b"":
            process.stderr.close()
            return text.decode(errors="replace")
        if part is None:
            if time.monotonic() > end:
                os.kill(process.pid, signal.SIGKILL)
                raise Failed(f"hangs after {seconds} s:\n{text.decode(errors='replace')}")
            time.sleep(0.001)
            continue
        text += part


# What no user may ever see.
FORBIDDEN = re.compile(r"frame #|Exception raised from|INTERNAL ASSERT|terminate called|what\(\):|Sanitizer|runtime error:")


def leftovers(checkpoints):
    """Names that a save would have cleaned up."""
    return sorted(path.name for path in checkpoints.iterdir() if not re.fullmatch(r"step-\d+|latest|best", path.name))


def found_step(done):
    """Of the checkpoint that `duet inspect` has found; "-1": none."""
    return next(iter(re.findall(r"step-\d+: step (\d+), saved", done.text)), "-1")


def steps_in(checkpoints):
    names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


def state_of(path):
    """Calls, faults and large allocations that a fork has counted."""
    content = path.read_bytes() if path.exists() else b""
    return [int.from_bytes(content[8 * i:8 * i + 8], sys.byteorder) for i in range(3)]
