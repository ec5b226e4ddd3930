"""R14: an allocation fails, somewhere in a run that resumes, trains and saves.

The run goes on, as a save in the background does that saves at once then, or ends with a message that speaks of memory. The
checkpoint before loads bit for bit, and the next run goes on to the unbroken end.
"""

import re

from small_run import SmallRun
from torture import state_of

LEAST = 1 << 14  # bytes: what tensors and files take, not the bookkeeping around them


def one_case(torture, small, n, count, more):
    name, state = small.copy(), torture.folder / "state"
    state.unlink(missing_ok=True)
    done = torture.run(*small.words(name), *more, TORTURE_STATE=state, TORTURE_ALLOC=f"{n}:{LEAST}:{count}")
    torture.require(state_of(state)[1] > 0, f"there was no allocation {n}", done)
    small.check_message(done)
    torture.require(done.code == 0 or re.search("memory|alloc", done.text), "does not speak of memory", done)
    saved = small.check_intact(name, done)
    torture.require(saved or done.code != 0, "the run ended well but without its last checkpoint", done)
    return done.code


def run(torture):
    small = SmallRun(torture)
    codes, made, among = {}, 0, 0
    for more in (("--mode", "eager"), ("--mode", "graph", "default_hooks.checkpoint.async=true")):
        name, state = small.copy(), torture.folder / "state"
        state.unlink(missing_ok=True)
        torture.good(*small.words(name), *more, TORTURE_STATE=state, TORTURE_ALLOC=f"{1 << 60}:{LEAST}")
        small.drop(name)
        calls = state_of(state)[2]
        among += calls
        for n in sorted(torture.random.sample(range(calls), min(calls, torture.count(8, 1000)))):
            count = torture.random.choice((1, 1, 1, 4))
            torture.case = f"{count} failed from allocation {n} of {calls} on, {' '.join(more)}"
            code = one_case(torture, small, n, count, more)
            codes[code] = codes.get(code, 0) + 1
            made += 1
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    return f"{made} failures among {among} large allocations: {ends}, every checkpoint loaded bit for bit"
