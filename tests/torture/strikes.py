"""R1 and R13: a run that gets signals again and again, in either mode, ends with the weights of one that nobody touched.

A third comes at a random call on the folder of checkpoints, a third after a random line of the log (the start, captures, steps,
validations), a third at a random moment of a start, which loads and verifies. Some runs have two ranks, of which one or
both get it. R1: SIGKILL, which leaves no temporary behind. R13: SIGTERM, SIGINT, SIGUSR1 or SIGHUP; the run saves and ends
with 75, or with the signal itself where it had not begun.
"""

import signal

import small_data
from chain import STOPPED, Chain, expect_clean, expect_end
from groups import Group, end_group
from torture import state_of

CONFIG = """
model: {type: Mlp, hidden: [24], dropout: 0.1}
data:
  train: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 8, num_workers: 1}
  val: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 32}
trainer: {max_steps: 45, val_interval: 7, accumulate: 2}
optim_wrapper: {optimizer: {type: AdamW, lr: 3.0e-3}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Linear, start_factor: 0.1, end: 10}, {type: Cosine, begin: 10}]
default_hooks: {logger: {interval: 1}, checkpoint: {interval: 3, max_keep: 2, save_best: accuracy}}
evaluator: [{type: Accuracy}]
distributed: {start_timeout: 100, timeout: 20}
"""
# No epochs: the order is drawn anew while it is read ahead.
ENDLESS = "_base_: run.yaml\ndata: {train: {sampler: infinite, num_workers: 2}}\n"
MODES = ("eager", "graph")


class Strikes:
    """`check(torture, codes, number, text)` of a process or of all ranks, which one or all of them got signal `number`."""

    def __init__(self, torture, signals, check):
        self.torture, self.random, self.signals, self.check = torture, torture.random, signals, check
        self.runs = 0
        small_data.write_data(torture.folder / "data")
        (torture.folder / "run.yaml").write_text(CONFIG.replace("DATA", str(torture.folder / "data")))
        (torture.folder / "endless.yaml").write_text(ENDLESS)

    def chain(self, name, config):
        chain = Chain(self.torture.program, self.torture.folder / f"{name}_{config}", self.torture.folder / f"{config}.yaml")
        chain.popen = self.torture.server().popen
        return chain

    def at_a_call(self, checkpoints, calls, number):
        """The variables of a process that sends itself a signal then."""
        return {"TORTURE_UNDER": str(checkpoints), "TORTURE_FAULT": f"{self.random.choice(calls)}:{-number}"}

    def strike(self, chain, mode, moment, calls, number):
        """The exit code; 0: it was through before."""
        chain.start(mode, "auto", env=self.at_a_call(chain.checkpoints, calls, number) if moment == "call" else {})
        if moment == "call":
            return chain.signal(0)
        lines = self.random.randint(1, 25) if moment == "line" else 0
        while chain.log.count("\n") < lines and chain.read(60):
            pass
        chain.read(self.random.uniform(0, 0.1))  # what follows an event is up to the machine
        return chain.signal(number)

    def calls_of_one(self, config):
        """The numbers of all calls on its folder that a whole run makes."""
        chain, state = self.chain("counted", config), self.torture.folder / f"{config}.state"
        chain.start("eager", "none", env={"TORTURE_UNDER": str(chain.checkpoints), "TORTURE_STATE": str(state)})
        self.torture.require(chain.signal(0) == 0, "a run that only counts failed", chain.log)
        return range(state_of(state)[0])

    def alone(self, config, wanted):
        expected = self.chain("unbroken", config).finish("eager", "none")
        calls, made = self.calls_of_one(config), 0
        while made < wanted:
            self.runs += 1
            chain = self.chain(f"run_{self.runs}", config)
            for turn in range(12):
                moment, number = ("call", "line", "start")[made % 3], self.random.choice(self.signals)
                self.torture.case = f"{number.name} {made} ({moment}, run {self.runs}, {config})"
                code = self.strike(chain, MODES[turn % 2], moment, calls, number)
                chain.expect_resumed()
                if code == 0:
                    break
                self.check(self.torture, [code], number, chain.log)
                made += 1
                if made == wanted:
                    break
            expect_end(chain.finish("graph", "auto"), expected, "the run that got signals again and again")
            expect_clean(chain)

    def strike_ranks(self, group, mode, moment, number):
        """Exit codes, and what all have said."""
        in_saves = range(40, 90)
        processes = group.start(mode, **(self.at_a_call(group.checkpoints, in_saves, number) if moment == "call" else {}))
        said = b""
        if moment == "line":
            lines = self.random.randint(3, 30)
            while said.count(b"\n") < lines and (part := processes[0].stderr.read(1 << 16)):
                said += part
            for victim in self.random.choice(([0], [1], [0, 1])):
                processes[victim].send_signal(number)
        codes, texts = end_group(processes)
        return codes, said.decode(errors="replace") + "".join(texts)

    def of_ranks(self, wanted):
        expected, made = Group(self.torture, "run.yaml", "ranks_unbroken").finish(), 0
        while made < wanted:
            self.runs += 1
            group = Group(self.torture, "run.yaml", f"ranks_{self.runs}")
            for turn in range(min(wanted - made, 6)):
                moment, number = ("line", "call")[made % 2], self.random.choice(self.signals)
                self.torture.case = f"{number.name} {made} ({moment}) to one or both of two ranks (run {self.runs})"
                codes, said = self.strike_ranks(group, MODES[turn % 2], moment, number)
                if codes == [0, 0]:
                    break
                self.check(self.torture, codes, number, said)
                made += 1
            group.finish(expected, "graph")

    def run(self, alone, endless, of_ranks):
        self.alone("run", alone)
        self.alone("endless", endless)
        self.of_ranks(of_ranks)
        return (f"{alone + endless} signals to one process, {of_ranks} to one or both of two ranks: {self.runs} runs ended with the "
                "weights of the unbroken one, nothing left behind")


def check_killed(torture, codes, number, text):
    """Ranks that live lose one (6)."""
    torture.require(-number in codes and set(codes) <= {0, 6, -number}, f"expected killed processes, found {codes}", text)


def check_stopped(torture, codes, number, text):
    """Saved, and said so; or ended by the signal where training had not begun."""
    if set(codes) != {STOPPED}:
        too_early = "training in mode" not in text and set(codes) <= {-number, 128 + number}
        return torture.require(too_early, f"expected exit code {STOPPED} after {number.name}, found {codes}", text)
    return torture.require(number.name in text, f"does not name {number.name}", text)


def kills(torture):
    count = torture.count
    return Strikes(torture, (signal.SIGKILL,), check_killed).run(count(12, 650), count(6, 300), count(2, 50))


def signals(torture):
    number, count = signal.Signals, torture.count
    names = (number.SIGTERM, number.SIGINT, number.SIGUSR1, number.SIGHUP)
    return Strikes(torture, names, check_stopped).run(count(6, 300), count(3, 200), count(2, 100))
