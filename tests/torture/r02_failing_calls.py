"""R2: every call on the folder of checkpoints fails once, during the start and the save of a resumed run.

open, write, fsync, close, rename, unlink, mkdir, flock, fallocate: the n-th of them, for every n, fails with EIO, ENOSPC,
EDQUOT or EINTR, alone or with all after it, in saves at once and in the background. The run ends by itself; the
checkpoint before loads bit for bit, the new one too or was reported.
"""

import errno

from small_run import SmallRun
from torture import state_of

KINDS = ("EIO", "ENOSPC", "EDQUOT", "EINTR")
FOR_GOOD = 1_000_000
BACKGROUND = ("default_hooks.checkpoint.async=true",)


def one_case(torture, small, n, kind, count, more):
    name = small.copy()
    state = torture.folder / "state"
    state.unlink(missing_ok=True)
    done = torture.run(*small.words(name), *more, TORTURE_UNDER=small.checkpoints(name), TORTURE_STATE=state,
                       TORTURE_FAULT=f"{n}:{getattr(errno, kind)}:{count}")
    small.check_message(done)
    faults = state_of(state)[1]
    torture.require(faults > 0, f"no call {n} was made", done)
    saved = small.check_intact(name, done)
    torture.require(saved or done.code != 0, "the run ended well but without its last checkpoint", done)
    return done.code


def calls_of(torture, small, more):
    name, state = small.copy(), torture.folder / "state"
    state.unlink(missing_ok=True)
    torture.good(*small.words(name), *more, TORTURE_UNDER=small.checkpoints(name), TORTURE_STATE=state)
    small.drop(name)
    return state_of(state)[0]


def cases_of(torture, small, more):
    """All of them; of the short form, one of each call."""
    calls = calls_of(torture, small, more)
    every = [(n, kind, count, more) for n in range(calls) for kind in KINDS for count in (1, FOR_GOOD) if (kind, count) != ("EINTR", FOR_GOOD)]
    if torture.long:
        return calls, every
    return calls, [torture.random.choice([case for case in every if case[0] == n]) for n in range(calls)]


def run(torture):
    small = SmallRun(torture)
    made = failed = 0
    called = []
    for more in ((), BACKGROUND):
        calls, cases = cases_of(torture, small, more)
        called.append(calls)
        if not torture.long:
            cases = torture.random.sample(cases, len(cases) // (8 if more else 4))
        for n, kind, count, words in cases:
            torture.case = f"{kind} at call {n} of {calls}{' and all after it' if count > 1 else ''} {' '.join(words)}"
            failed += one_case(torture, small, n, kind, count, words) != 0
            made += 1
    torture.require(failed > 3, f"only {failed} of {made} faults were reported: this shows nothing")
    return (f"{made} faults at {called[0]} calls of saves at once and {called[1]} of saves in the background: {failed} ended the run "
            "with a message, every checkpoint before and every new one loaded bit for bit")
