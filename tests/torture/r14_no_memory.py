"""R14: an allocation fails, somewhere in a run that resumes, trains and saves.

The run goes on, as a save in the background does that saves at once then, or ends with a message that speaks of memory. The
checkpoint before loads bit for bit, and the next run goes on to the unbroken end. Without memory for a few bytes libraries
may abort it, where they allocate in functions that must not throw (destructors of nlohmann::json, std::filesystem).
"""

import re
import signal

from small_run import SmallRun
from torture import state_of

LARGE = 1 << 14  # bytes: what tensors and files take
SMALL = 1        # the bookkeeping around them


def one_case(torture, small, n, least, count, more):
    """Its exit code; nothing where this run made fewer allocations, as their number differs a little from run to run."""
    name, state = small.copy(), torture.folder / "state"
    state.unlink(missing_ok=True)
    signals = (signal.SIGABRT,) if least == SMALL else ()
    done = torture.run(*small.words(name), *more, signals=signals, TORTURE_STATE=state, TORTURE_ALLOC=f"{n}:{least}:{count}")
    if state_of(state)[1] == 0:
        torture.require(done.code == 0, f"there was no allocation {n}, and yet it failed", done)
        return small.drop(name)
    if done.code >= 0:
        small.check_message(done)
    torture.require(done.code == 0 or re.search("memory|alloc|terminate", done.text), "does not speak of memory", done)
    saved = small.check_intact(name, done)
    torture.require(saved or done.code != 0, "the run ended well but without its last checkpoint", done)
    return done.code


def calls_of(torture, small, least, more):
    """How many allocations of at least so many bytes a run makes that is asked for nothing else."""
    name, state = small.copy(), torture.folder / "state"
    state.unlink(missing_ok=True)
    torture.good(*small.words(name), *more, TORTURE_STATE=state, TORTURE_ALLOC=f"{1 << 60}:{least}")
    small.drop(name)
    return state_of(state)[2]


def run(torture):
    small = SmallRun(torture)
    codes, made = {}, {LARGE: 0, SMALL: 0}
    among = {LARGE: 0, SMALL: 0}
    for more in (("--mode", "eager"), ("--mode", "graph", "default_hooks.checkpoint.async=true")):
        for least in (LARGE, SMALL):
            calls = calls_of(torture, small, least, more)
            among[least] += calls
            wanted = torture.count(6, calls if least == LARGE else 500)
            for n in sorted(torture.random.sample(range(calls), min(calls, wanted))):
                count = torture.random.choice((1, 1, 1, 4))
                torture.case = f"{count} failed from allocation {n} of {calls} of at least {least} bytes on, {' '.join(more)}"
                code = one_case(torture, small, n, least, count, more)
                if code is not None:
                    codes[code] = codes.get(code, 0) + 1
                    made[least] += 1
    aborted = codes.pop(-signal.SIGABRT, 0)
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    return (f"{made[LARGE]} failures among {among[LARGE]} large allocations and {made[SMALL]} among {among[SMALL]} of any size: {ends}, {aborted} of the latter were aborted by libraries, "
            "every checkpoint loaded bit for bit")
