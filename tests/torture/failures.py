"""R2 and R14: a run that resumes, trains and saves meets calls that fail, or has no memory.

R2: of the calls on the folder of checkpoints (open, write, fsync, close, rename, unlink, mkdir, flock, fallocate) the n-th
fails, alone or with all after it, in saves at once and in the background. R14: the n-th allocation fails, or a few from
there on. The run ends by itself or goes on; the checkpoint before loads bit for bit, the new one too or was reported, and the
next run goes on to the unbroken end. Without memory for a few bytes libraries may abort a run, where they allocate in
functions that must not throw (destructors of nlohmann::json, std::filesystem).
"""

import collections
import errno
import re
import signal

from small_run import SmallRun
from torture import state_of

FOR_GOOD = 1_000_000
AT_ONCE, BACKGROUND = "default_hooks.checkpoint.async=false", "default_hooks.checkpoint.async=true"


def run_with(torture, small, words, signals=(), **fault):
    """A run from step 4 on, its folder, and what it has counted: calls, faults and allocations."""
    name, state = small.copy(), torture.folder / "state"
    state.unlink(missing_ok=True)
    done = torture.run(*small.words(name), *words, signals=signals, TORTURE_STATE=state,
                       TORTURE_UNDER=small.checkpoints(name), **fault)
    return done, name, state_of(state)


def check(torture, small, done, name):
    if done.code >= 0:
        small.check_message(done)
    saved = small.check_intact(name, done)
    torture.require(saved or done.code != 0, "the run ended well but without its last checkpoint", done)


def of_calls(torture):
    small, codes, made = SmallRun(torture), collections.Counter(), 0
    for words, part in (((AT_ONCE,), 4), ((BACKGROUND,), 8), (("--mode", "graph", BACKGROUND), 8)):
        calls = run_with(torture, small, words)[2][0]
        cases = [(n, kind, count) for n in range(calls) for kind in ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS", "EACCES")
                 for count in (1, FOR_GOOD) if (kind, count) != ("EINTR", FOR_GOOD)]
        for n, kind, count in cases if torture.long else torture.random.sample(cases, calls // part):
            torture.case = f"{kind} at call {n} of {calls}{' and all after it' if count > 1 else ''} {' '.join(words)}"
            done, name, counted = run_with(torture, small, words, TORTURE_FAULT=f"{n}:{getattr(errno, kind)}:{count}")
            torture.require(counted[1] > 0, f"no call {n} was made", done)
            torture.require(count == 1 or done.code in (0, 4), "expected exit code 4", done)
            check(torture, small, done, name)
            codes[done.code] += 1
            made += 1
    torture.require(codes[0] < made - 3, f"only {made - codes[0]} of {made} faults were reported: this shows nothing")
    return (f"{made} faults at calls of saves at once and in the background: {made - codes[0]} ended the run with a message, every "
            "checkpoint before and every new one loaded bit for bit")


def of_allocations(torture):
    small, codes = SmallRun(torture), collections.Counter()
    large, small_ones = 1 << 14, 1  # bytes: what tensors and files take, and the bookkeeping around them
    for words in (("--mode", "eager", AT_ONCE), ("--mode", "graph", BACKGROUND)):
        for least in (large, small_ones):
            calls = run_with(torture, small, words, TORTURE_ALLOC=f"{1 << 60}:{least}")[2][2]
            wanted = torture.count(6, calls if least == large else 500)
            for n in sorted(torture.random.sample(range(calls), min(calls, wanted))):
                count = torture.random.choice((1, 1, 1, 4))
                torture.case = f"{count} failed from allocation {n} of {calls} of at least {least} bytes on, {' '.join(words)}"
                signals = (signal.SIGABRT,) if least == small_ones else ()
                done, name, counted = run_with(torture, small, words, signals, TORTURE_ALLOC=f"{n}:{least}:{count}")
                is_struck = counted[1] > 0  # their number differs a little from run to run
                told = done.code == 0 or (is_struck and re.search("memory|alloc|terminate", done.text))
                torture.require(told, "does not speak of memory", done)
                check(torture, small, done, name)
                codes[done.code if is_struck else "none"] += 1
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items(), key=str))
    return f"{codes.total()} allocations failed: {ends}; every checkpoint loaded bit for bit"
