"""R13: SIGTERM, SIGINT, SIGUSR1 and SIGHUP at random moments: at a random call of a load or a save, after a random line
of the log (start, captures, steps, validations), and at a random time after it.

The run saves and ends with 75, or with the signal itself where it had not begun; the next one goes on in the other mode, and
the end is that of a run that nobody asked to stop.
"""

import signal

import bad_input_cases
from kill_resume import STOPPED, expect_clean, expect_end
from r01_kills import CONFIG, STEPS, calls_of_one, forked

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def strike(torture, chain, mode, how, calls, number):
    """The exit code; 0: it was through before."""
    more = {}
    if how == "call":
        more = {"TORTURE_UNDER": str(chain.checkpoints), "TORTURE_FAULT": f"{torture.random.randrange(calls)}:{-number}"}
    chain.start(mode, "auto", env=more)
    if how == "call":
        return chain.signal(0)
    lines = torture.random.randint(1, 25)
    while chain.log.count("\n") < lines and chain.read(60):
        pass
    if how == "time":
        chain.read(torture.random.uniform(0, 0.05))
    return chain.signal(number)


def run(torture):
    bad_input_cases.write_data(torture.folder / "data")
    config = torture.folder / "run.yaml"
    config.write_text(CONFIG.replace("DATA", str(torture.folder / "data")).replace("STEPS", str(STEPS)))
    expected = forked(torture, torture.folder / "unbroken", config).finish("eager", "none")
    calls, wanted = calls_of_one(torture, config), torture.count(16, 500)
    made = early = runs = 0
    while made < wanted:
        runs += 1
        chain = forked(torture, torture.folder / f"run_{runs}", config)
        for turn in range(12):
            how, number = ("call", "line", "time")[made % 3], torture.random.choice(SIGNALS)
            torture.case = f"signal {made} ({number.name}, {how}, run {runs})"
            code = strike(torture, chain, ("eager", "graph")[turn % 2], how, calls, number)
            if code == 0:
                break
            begun = "training in mode" in chain.log
            torture.require(code == STOPPED or (not begun and code in (-number, 128 + number)),
                            f"expected exit code {STOPPED} after {number.name}, found {code}", chain.log)
            torture.require(code != STOPPED or number.name in chain.log, f"does not name {number.name}", chain.log)
            made += 1
            early += code != STOPPED
            if made == wanted:
                break
        expect_end(chain.finish("graph", "auto"), expected, "the run that was stopped")
        expect_clean(chain)
    return f"{made}/{wanted} signals: {made - early} saved and ended with {STOPPED}, {early} came before training; {runs} runs ended as the unbroken one"
