"""R1: a run that is killed again and again ends with the weights of one that nobody touched, and leaves no temporary.

A third of the kills falls on a random call of a save, a third after a random step, a third at a random moment of a
start, which loads and verifies. The modes alternate. Some runs have two ranks, of which one or both die.
"""

import signal

from torture import state_of

import small_data
from groups import Group, end_group
from chain import Chain, expect_clean, expect_end

CONFIG = """
model: {type: Mlp, hidden: [24], dropout: 0.1}
data:
  train: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 8, num_workers: 1}
  val: {type: FashionMnist, images: DATA/images, labels: DATA/labels, batch_size: 32}
trainer: {max_steps: STEPS, val_interval: 7, accumulate: 2}
optim_wrapper: {optimizer: {type: AdamW, lr: 3.0e-3}, clip_grad: {max_norm: 1.0}}
param_scheduler: [{type: Linear, start_factor: 0.1, end: 10}, {type: Cosine, begin: 10}]
default_hooks: {logger: {interval: 1}, checkpoint: {interval: 3, max_keep: 2, save_best: accuracy}}
evaluator: [{type: Accuracy}]
distributed: {start_timeout: 100, timeout: 20}
"""
STEPS = 45


def forked(torture, folder, config):
    chain = Chain(torture.program, folder, config)
    chain.popen = torture.server().popen
    return chain


class Kills:
    def __init__(self):
        self.made = self.in_saves = self.by_ranks = 0


def kill_once(torture, chain, mode, how, calls):
    """False if the run was through before."""
    more = {}
    if how == "save":  # dies at that call itself
        plan = f"{torture.random.randrange(calls)}:{-signal.SIGKILL}"
        more = {"TORTURE_UNDER": str(chain.checkpoints), "TORTURE_FAULT": plan}
    first = chain.newest_checkpoint()
    chain.start(mode, "auto", env=more)
    if how == "step":
        chain.wait_for_step(min(STEPS, first + torture.random.randint(1, 12)))
        code = chain.signal(signal.SIGKILL)
    elif how == "start":  # the beginning of the log is the event; what follows is up to the machine
        chain.read(torture.random.uniform(0, 0.1))
        code = chain.signal(signal.SIGKILL)
    else:
        code = chain.signal(0)
    chain.expect_resumed()
    torture.require(code in (0, -signal.SIGKILL), f"expected a killed process, found exit code {code}", chain.log)
    return code != 0


def calls_of_one(torture, config):
    """How many calls on its folder a whole run makes."""
    chain = forked(torture, config.with_name(f"counted_{config.stem}"), config)
    state = config.with_suffix(".state")
    chain.start("eager", "none", env={"TORTURE_UNDER": str(chain.checkpoints), "TORTURE_STATE": str(state)})
    torture.require(chain.signal(0) == 0, "a run that only counts failed", chain.log)
    return state_of(state)[0]


def kill_alone(torture, config, count, kills):
    """How many runs it took."""
    expected = forked(torture, config.with_name(f"unbroken_{config.stem}"), config).finish("eager", "none")
    calls, run = calls_of_one(torture, config), 0
    while kills.made < count:
        run += 1
        chain = forked(torture, config.with_name(f"killed_{config.stem}_{run}"), config)
        for number in range(12):
            how = ("save", "step", "start")[kills.made % 3]
            torture.case = f"kill {kills.made} (run {run}, {how})"
            if not kill_once(torture, chain, ("eager", "graph")[number % 2], how, calls):
                break
            kills.made += 1
            kills.in_saves += how == "save"
            if kills.made == count:
                break
        expect_end(chain.finish("graph", "auto"), expected, "the run killed again and again")
        expect_clean(chain)
    return run


def kill_ranks(torture, config, count, kills):
    expected, run = Group(torture, config, "group_unbroken").finish(), 0
    while kills.by_ranks < count:
        run += 1
        group = Group(torture, config, f"group_{run}")
        struck = kill_ranks_of(torture, group, count, kills)
        torture.case = f"end of the run of two ranks {run}, {struck} kills"
        group.finish(expected)


def kill_ranks_of(torture, group, count, kills):
    struck = 0
    for how in ("step", "save", "both"):
        if kills.by_ranks == count:
            break
        torture.case = f"kill {kills.by_ranks} of two ranks ({how})"
        first = group.newest()
        more = {}
        if how == "save":  # one of the middle: some are made by every save
            more = {"TORTURE_UNDER": str(group.checkpoints), "TORTURE_FAULT": f"{torture.random.randint(40, 90)}:-9"}
        processes = group.start(**more)
        if how != "save" and group.wait_until_saved(min(first + 6, STEPS), processes):
            victims = (0, 1) if how == "both" else (torture.random.randrange(2),)
            for victim in victims:
                processes[victim].send_signal(signal.SIGKILL)
        codes, texts = end_group(processes)
        died = codes.count(-signal.SIGKILL)
        for code in codes:
            torture.require(code in (0, 6, -9), f"expected 0, 6 or a kill, found {codes}", "".join(texts))
        kills.by_ranks += died > 0
        kills.made += died > 0
        kills.in_saves += died > 0 and how == "save"
        struck += died > 0
    return struck


def run(torture):
    small_data.write_data(torture.folder / "data")
    config = torture.folder / "run.yaml"
    config.write_text(CONFIG.replace("DATA", str(torture.folder / "data")).replace("STEPS", str(STEPS)))
    endless = config.with_name("endless.yaml")  # no epochs: the order is drawn anew while it is read ahead
    endless.write_text("_base_: run.yaml\ndata: {train: {sampler: infinite, num_workers: 2}}\n")
    kills = Kills()
    runs = kill_alone(torture, config, torture.count(12, 650), kills)
    runs += kill_alone(torture, endless, torture.count(18, 950), kills)
    kill_ranks(torture, config, torture.count(2, 50), kills)
    return (f"{kills.made} kills, {kills.in_saves} inside a save, {kills.by_ranks} of a group of two ranks: "
            f"{runs} runs and every group ended with the weights of the unbroken one, nothing left behind")
