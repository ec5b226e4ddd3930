"""R11: numbers that are not finite, from data, gradients, weights, the optimizer's state or a wild learning rate, under every
policy, in both modes, on all or one of two ranks; and losses that are far off.

No run saves weights that are not finite. None ends as a success with them, unless it was configured to warn alone, and
has warned.
"""

import collections
import itertools
import json
import re
import struct

from file_bytes import safetensors
from groups import end_group, start_group
from torture import FORBIDDEN, Done

SAMPLES, FEATURES, STEPS = 64, 8, 120
CONFIG = """
model: {type: Mlp, in_features: 8, hidden: [8]}
data: {train: {type: Safetensors, path: %(data)s.safetensors, batch_size: %(batch)d}}
trainer: {max_steps: 120}
optim_wrapper: {optimizer: {type: SGD, lr: %(rate)s, momentum: 0.9}, non_finite: %(policy)s, %(amp)s}
default_hooks:
  nan_guard: {action: %(action)s, interval: 10, max_consecutive_skips: 30, %(spikes)s}
  checkpoint: {interval: 20}
  logger: {interval: 20}
"""
USUAL = {"data": "whole", "batch": 8, "rate": 0.01, "policy": "apply", "amp": "amp: off", "action": "raise", "spikes": "spike_threshold: 0"}
POLICIES, ACTIONS, MODES = ("apply", "skip", "raise"), ("raise", "stop", "warn", "rollback"), ("eager", "graph")
DIVERGED, LOST = 5, 6
# Files of data: what some of their numbers are instead.
DATA = {
    "whole": {},
    "nan": dict.fromkeys(range(SAMPLES * FEATURES), float("nan")),
    "one_nan": {100: float("nan")},
    "one_inf": {100: float("inf")},
    "one_large": {100: 3e38},
}
# What is wrong from the beginning.
FROM_START = {**{name: {"data": name} for name in DATA}, "learning rate": {"rate": 1e30}}


def write_data(path, instead):
    values = [instead.get(i, ((i * 37) % 101) / 101) for i in range(SAMPLES * FEATURES)]
    path.write_bytes(safetensors({
        "input": ("F32", [SAMPLES, FEATURES], struct.pack(f"<{len(values)}f", *values)),
        "target": ("I64", [SAMPLES], struct.pack(f"<{SAMPLES}q", *[i % 10 for i in range(SAMPLES)]))}))


def not_finite(path):
    """Whether weights or the optimizer's state hold a number that is not finite; the latest loss may."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    for name, tensor in json.loads(content[8:8 + size]).items():
        is_meant = path.name == "model.safetensors" or name.startswith("optimizer.")
        if name == "__metadata__" or tensor["dtype"] != "F32" or not is_meant:
            continue
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        bits = struct.unpack(f"<{(end - begin) // 4}I", content[begin:end])
        if any(value >> 23 & 255 == 255 for value in bits):
            return True
    return False


class Case:
    """A run that meets something, and its end."""

    def __init__(self, torture, number):
        self.torture, self.random, self.folder = torture, torture.random, torture.folder / str(number)
        self.once = self.folder.with_suffix(".once")

    def train(self, mode, fault="", ranks=1, **settings):
        """What all ranks have said. Where one alone fails the others name it, with 6: what it did tells."""
        settings = {**USUAL, "batch": 8 // ranks, **settings}
        config = self.folder.with_suffix(".yaml")
        config.write_text(CONFIG % settings)
        words = ["train", config, f"work_dir={self.folder}", "--mode", mode, *([fault] if fault else [])]
        codes, texts = end_group(start_group(self.torture, words, ranks, "duet_faulty"))
        done = Done(words, min(codes), "".join(texts))
        one_alone = set(codes) == {DIVERGED, LOST} and "rank" in done.text
        self.torture.require(len(set(codes)) == 1 or one_alone, f"exit codes {codes}", done)
        self.check(done, settings["action"])
        return done

    def check(self, done, action):
        """What holds of every run: a success has the last weights, or warned who asked for no more."""
        require = self.torture.require
        require(not FORBIDDEN.search(done.text), "shows what no user should see", done)
        for path in self.folder.glob("checkpoints/step-*/*.safetensors"):
            require(not not_finite(path), f"{path.parent.name}/{path.name} holds numbers that are not finite", done)
        require(done.code in (0, DIVERGED), f"exit code {done.code}", done)
        if done.code == DIVERGED:
            return require(re.search(r"(error:|warning).*(not finite|skipped|spike)", done.text, re.DOTALL), "does not say why", done)
        warned = action == "warn" and re.search(r"warning .*\[NaNGuardHook\]", done.text)
        last = self.folder / "checkpoints" / f"step-{STEPS}"
        return require(last.exists() or warned, "success without the weights of the last step", done)

    def expect(self, done, code, text=""):
        self.torture.require(done.code == code and text in done.text, f"expected exit code {code} and '{text}'", done)
        return done.code

    def from_start(self, fault, policy, action, mode, scaled):
        amp = {"amp": "amp: bf16, loss_scale: {init_scale: 1024}"} if scaled else {}
        done = self.train(mode, policy=policy, action=action, **FROM_START[fault], **amp)
        if fault == "whole":
            return self.expect(done, 0)
        if fault == "nan":
            self.torture.require(done.code != 0 or action == "warn", "success on data that are all NaN", done)
            if policy == "skip" and action == "raise":
                self.torture.require("no checkpoint" in done.text or "step-" in done.text, "does not name the last good checkpoint", done)
                return self.expect(done, DIVERGED)
        return done.code

    def within(self, what, value, policy, action, mode, ranks):
        """One number is spoilt: of a sample, or after a step."""
        rank = self.random.randrange(ranks) if ranks > 1 else -1
        step = self.random.randint(25, STEPS - 15)
        fault = f"{{type: Fault, what: {what}, value: {value}, at: {8 * step if what == 'value' else step}, rank: {rank}}}"
        place = "data.train.transforms" if what == "value" else "custom_hooks"
        done = self.train(mode, f"{place}=[{fault}]", ranks, policy=policy, action=action)
        if rank >= 0 and what == "gradient" and policy == "skip" and done.code == 0:  # a step that one rank alone has skipped
            self.torture.require("differ" in done.text, "ranks have other weights, and nobody was told", done)
        return done.code

    def spike(self, action, mode):
        """One weight becomes far off, once, some times in a step that is saved, before a loss shows it."""
        saved = self.random.random() < 0.3
        at = self.random.randrange(40, STEPS, 20) if saved else self.random.randint(25, STEPS - 15)
        fault = f"custom_hooks=[{{type: Fault, what: weight, value: 1e4, at: {at}, once: '{self.once}'}}]"
        done = self.train(mode, fault, spikes=f"spike_threshold: 8, spike_window: 20, spike_action: {action}")
        return self.expect(done, DIVERGED if action in ("raise", "stop") else 0, "spike")


def cases(torture):
    """(method, its arguments): all of them; of the short form some of each kind."""
    from_start = [(Case.from_start, *case) for case in itertools.product(FROM_START, POLICIES, ACTIONS, MODES, (False, True))]
    within = [(Case.within, *case) for case in itertools.product(
        ("value", "gradient", "weight", "optimizer"), ("nan", "inf"), POLICIES, ACTIONS, MODES, (1, 2))]
    spikes = [(Case.spike, *case) for case in itertools.product(ACTIONS, MODES)]
    if torture.long:
        return from_start + within + spikes
    always = [(Case.from_start, "nan", "skip", "raise", mode, scaled) for mode in MODES for scaled in (False, True)]
    some = torture.random.sample
    return some(from_start, 12) + always + some(within, 14) + some(spikes, 4)


def run(torture):
    for name, instead in DATA.items():
        write_data(torture.folder / f"{name}.safetensors", instead)
    codes, chosen = collections.Counter(), cases(torture)
    for number, (call, *arguments) in enumerate(chosen):
        torture.case = f"case {number}: {call.__name__} {arguments}"
        codes[call(Case(torture, number), *arguments)] += 1
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    return f"{len(chosen)}/{len(chosen)} runs, none saved numbers that are not finite, none ended well with them unwarned: {ends}"
