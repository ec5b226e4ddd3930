"""R13: SIGTERM, SIGINT, SIGUSR1 and SIGHUP at random moments: at a random call of a load or a save, after a random line
of the log (start, captures, steps, validations), and at a random time after it.

The run saves and ends with 75, or with the signal itself where it had not begun; the next one goes on in the other mode, and
the end is that of a run that nobody asked to stop. So do two ranks of which one or both get the signal, and a run that waits
for data which do not come.
"""

import json
import signal
import time

import small_data
from groups import Group, end_group
from chain import STOPPED, expect_clean, expect_end
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


def check_stopped(torture, code, number, log):
    """Saved, and said so; or ended by the signal where it had not begun. Whether it saved."""
    begun = "training in mode" in log
    torture.require(code == STOPPED or (not begun and code in (-number, 128 + number)),
                    f"expected exit code {STOPPED} after {number.name}, found {code}", log)
    torture.require(code != STOPPED or number.name in log, f"does not name {number.name}", log)
    return code == STOPPED


def alone(torture, config, wanted):
    """How many saved, and in how many runs."""
    expected = forked(torture, torture.folder / "unbroken", config).finish("eager", "none")
    calls = calls_of_one(torture, config)
    made = saved = runs = 0
    while made < wanted:
        runs += 1
        chain = forked(torture, torture.folder / f"run_{runs}", config)
        for turn in range(12):
            how, number = ("call", "line", "time")[made % 3], torture.random.choice(SIGNALS)
            torture.case = f"signal {made} ({number.name}, {how}, run {runs})"
            code = strike(torture, chain, ("eager", "graph")[turn % 2], how, calls, number)
            if code == 0:
                break
            saved += check_stopped(torture, code, number, chain.log)
            made += 1
            if made == wanted:
                break
        expect_end(chain.finish("graph", "auto"), expected, "the run that was stopped")
        expect_clean(chain)
    return saved, runs


def wait_for_lines(process, count):
    """What the process says until there are so many lines, or no more."""
    said = b""
    while said.count(b"\n") < count and (part := process.stderr.read(1 << 16)):
        said += part
    return said.decode(errors="replace")


def strike_ranks(torture, group, mode, number):
    """Exit codes and what all have said."""
    processes = group.start(mode)
    before = wait_for_lines(processes[0], torture.random.randint(3, 30))
    time.sleep(torture.random.choice((0, torture.random.uniform(0, 0.05))))
    for victim in torture.random.choice(([0], [1], [0, 1])):
        processes[victim].send_signal(number)
    codes, texts = end_group(processes)
    return codes, before + "".join(texts)


def of_ranks(torture, config, wanted):
    """How many signals stopped a run of two ranks before it was through."""
    expected, made, runs = Group(torture, config, "ranks_unbroken").finish(), 0, 0
    while made < wanted:
        runs += 1
        group = Group(torture, config, f"ranks_{runs}")
        for turn in range(min(wanted - made, 6)):
            number = torture.random.choice(SIGNALS)
            torture.case = f"{number.name} to one or both of two ranks (run {runs}, {made})"
            codes, said = strike_ranks(torture, group, ("eager", "graph")[turn % 2], number)
            if codes == [0, 0]:
                break
            torture.require(codes == [STOPPED, STOPPED] and number.name in said, f"exit codes {codes}", said)
            made += 1
        group.finish(expected, "graph")
    return made


def in_a_wait(torture, config, number, workers, mode):
    """The data of a random sample do not come: the run stops within seconds, and goes on where they do."""
    name = f"waiting_{number.name}_{workers}_{mode}_{torture.random.getrandbits(32)}"
    words = ["train", config, f"work_dir={torture.folder / name}", "--mode", mode, "--resume", "auto", "--json", f"{name}.json"]
    at = torture.random.randrange(100, 300)
    waits = f"data.train.transforms=[{{type: Fault, what: sleep, seconds: 1000, at: {at}}}]"
    server = torture.server(0, "duet_faulty")
    process = server.popen(["duet", *words, waits, f"data.train.num_workers={workers}"], cwd=torture.folder)
    before = wait_for_lines(process, 9)
    time.sleep(1)  # by then nothing else is left to do
    process.send_signal(number)
    begun = time.monotonic()
    done = torture.finish(process, words)
    torture.require(time.monotonic() - begun < 20, f"took {time.monotonic() - begun:.1f} s to stop", done)
    check_stopped(torture, done.code, number, before + done.text)
    torture.good(*words)
    return json.loads((torture.folder / f"{name}.json").read_text())["weights_hash"]


def waiting(torture, config, wanted):
    expected = None
    for i in range(wanted):
        number, mode = torture.random.choice(SIGNALS), ("eager", "graph")[i % 2]
        torture.case = f"{number.name} in a wait for data {i}"
        found = in_a_wait(torture, config, number, torture.random.randrange(3), mode)
        expected = expected or found
        torture.require(found == expected, "other weights than those of another run")
    return wanted


def run(torture):
    small_data.write_data(torture.folder / "data")
    config = torture.folder / "run.yaml"
    config.write_text(CONFIG.replace("DATA", str(torture.folder / "data")).replace("STEPS", str(STEPS)))
    wanted = torture.count(9, 500)
    saved, runs = alone(torture, config, wanted)
    ranks, waits = of_ranks(torture, config, torture.count(2, 100)), waiting(torture, config, torture.count(2, 40))
    return (f"{wanted}/{wanted} signals: {saved} saved and ended with {STOPPED}, {wanted - saved} came before training; {runs} runs ended as "
            f"the unbroken one; {ranks} times one or both of two ranks were asked, {waits} times a run that waited for data")
