"""R11: numbers that are not finite, from data, loss, gradients, weights or the optimizer's state, under every policy, in both
modes, and on one of two ranks; and losses that are far off.

No run saves weights that are not finite. None ends as a success with them, unless it was configured to warn alone, and
has warned.
"""

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
data: {train: {type: Safetensors, path: %s, batch_size: 8}}
trainer: {max_steps: 120}
optim_wrapper: {optimizer: {type: SGD, lr: %s, momentum: 0.9}, non_finite: %s%s}
default_hooks: {nan_guard: {action: %s, interval: 10, max_consecutive_skips: 30%s}, checkpoint: {interval: 20}, logger: {interval: 20}}
"""
DIVERGED, LOST = 5, 6


def write_data(path, bad):
    """`bad` takes the number of a value and gives what it is instead, or nothing."""
    values = [((i * 37) % 101) / 101 for i in range(SAMPLES * FEATURES)]
    values = [value if bad(i) is None else bad(i) for i, value in enumerate(values)]
    path.write_bytes(safetensors({
        "input": ("F32", [SAMPLES, FEATURES], struct.pack(f"<{len(values)}f", *values)),
        "target": ("I64", [SAMPLES], struct.pack(f"<{SAMPLES}q", *[i % 10 for i in range(SAMPLES)]))}))


# Name: what is wrong with the data, the learning rate
FAULTS = {
    "all NaN": (lambda i: float("nan"), 0.01),
    "one NaN": (lambda i: float("nan") if i == 100 else None, 0.01),
    "one inf": (lambda i: float("inf") if i == 100 else None, 0.01),
    "spike": (lambda i: 3e38 if i == 100 else None, 0.01),
    "learning rate": (lambda i: None, 1e30),
    "nothing": (lambda i: None, 0.01),
}


def not_finite(path):
    """Whether weights or the optimizer's state hold a number that is not finite; the latest loss may."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    for name, tensor in header.items():
        is_meant = path.name == "model.safetensors" or name.startswith("optimizer.")
        if name == "__metadata__" or tensor["dtype"] != "F32" or not is_meant:
            continue
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        bits = struct.unpack(f"<{(end - begin) // 4}I", content[begin:end])
        if any(value >> 23 & 255 == 255 for value in bits):
            return True
    return False


def write_config(torture, number, fault, policy, action, scaled=False, spikes=""):
    _, rate = FAULTS[fault]
    amp = ", amp: bf16, loss_scale: {init_scale: 1024}" if scaled else ""
    config = torture.folder / f"{number}.yaml"
    config.write_text(CONFIG % (torture.folder / f"{fault.replace(' ', '_')}.safetensors", rate, policy, amp, action, spikes))
    return config


def check_saved(torture, number, done):
    """No checkpoint has numbers that are not finite; nor does anybody see what no user should."""
    torture.require(not FORBIDDEN.search(done.text), "shows what no user should see", done)
    for path in (torture.folder / str(number)).glob("checkpoints/step-*/*.safetensors"):
        torture.require(not not_finite(path), f"{path.parent.name}/{path.name} holds numbers that are not finite", done)


def check_end(torture, number, action, done):
    """Its exit code is a success only with the last weights, or with a warning for who asked for no more."""
    torture.require(done.code in (0, DIVERGED), f"exit code {done.code}", done)
    if done.code == 0:
        last = torture.folder / str(number) / "checkpoints" / f"step-{STEPS}"
        told = action == "warn" and re.search(r"warning .*\[NaNGuardHook\]", done.text)
        torture.require(last.exists() or told, "success without the weights of the last step", done)
    else:
        torture.require(re.search(r"(error:|warning).*(not finite|skipped|spike)", done.text, re.DOTALL), "does not say why", done)


def from_data(torture, number, fault, policy, action, mode, scaled):
    config = write_config(torture, number, fault, policy, action, scaled)
    done = torture.run("train", config, f"work_dir={torture.folder / str(number)}", "--mode", mode)
    check_saved(torture, number, done)
    if fault == "nothing":
        torture.require(done.code == 0, "a run whose numbers are all finite failed", done)
        return done.code
    check_end(torture, number, action, done)
    if done.code == 0:  # who asks for "warn" is warned, and gets the weights as they were
        torture.require(fault != "all NaN" or action == "warn", "success on data that are all NaN", done)
    if fault == "all NaN" and policy == "skip" and action == "raise":
        torture.require(done.code == DIVERGED, f"expected exit code {DIVERGED}", done)
        torture.require("no checkpoint" in done.text or "step-" in done.text, "does not name the last good checkpoint", done)
    return done.code


def injected(torture, what, value, rank=-1):
    """An override that spoils one number, once: of a sample, or after a step."""
    step = torture.random.randint(25, STEPS - 15)
    if what != "value":
        return f"custom_hooks=[{{type: Fault, what: {what}, value: {value}, at: {step}, rank: {rank}}}]"
    return f"data.train.transforms=[{{type: Fault, what: value, value: {value}, at: {8 * step}, rank: {rank}}}]"


def run_faulty(torture, number, config, fault, mode, ranks, alike=False):
    """In a group of ranks, what all have said. Where one alone fails, unless they must end alike, the others name it, with
    6: what it did tells."""
    words = ["train", config, f"work_dir={torture.folder / str(number)}", "--mode", mode, fault]
    if ranks > 1:
        words += ["data.train.batch_size=4"]
    codes, texts = end_group(start_group(torture, words, ranks, "duet_faulty"))
    done = Done(words, min(codes), "".join(texts))
    one_alone = not alike and set(codes) == {DIVERGED, LOST} and "rank" in done.text
    torture.require(len(set(codes)) == 1 or one_alone, f"exit codes {codes}", done)
    return done


def from_within(torture, number, what, value, policy, action, mode, ranks):
    config = write_config(torture, number, "nothing", policy, action)
    rank = torture.random.randrange(ranks) if ranks > 1 else -1
    done = run_faulty(torture, number, config, injected(torture, what, value, rank), mode, ranks)
    check_saved(torture, number, done)
    check_end(torture, number, action, done)
    if rank >= 0 and what == "gradient" and policy == "skip" and done.code == 0:  # a step that one rank alone has skipped
        torture.require("differ" in done.text, "ranks have other weights, and nobody was told", done)
    return done.code


def one_rank_at_a_save(torture, number, action, mode):
    """What one of two ranks holds goes bad, once, in a step that is saved: both do what the guard says."""
    config, random = write_config(torture, number, "nothing", "apply", action), torture.random
    once, what = torture.folder / f"{number}.once", random.choice(("weight", "optimizer"))
    where = f"at: {20 * random.randint(2, 5)}, rank: {random.randrange(2)}, once: '{once}'"
    fault = f"custom_hooks=[{{type: Fault, what: {what}, value: nan, {where}}}]"
    done = run_faulty(torture, number, config, fault, mode, 2, alike=True)
    check_saved(torture, number, done)
    check_end(torture, number, action, done)
    expected = 0 if action == "rollback" else DIVERGED
    torture.require(done.code == expected, f"expected exit code {expected}", done)
    return done.code


def spike(torture, number, action, mode):
    """One weight becomes far off, once: a sample might still be classified well."""
    config = write_config(torture, number, "nothing", "apply", "raise", spikes=f", spike_threshold: 8, spike_window: 20, spike_action: {action}")
    saved, once = torture.random.random() < 0.3, torture.folder / f"{number}.once"  # before a loss shows it
    at = torture.random.randrange(40, STEPS, 20) if saved else torture.random.randint(25, STEPS - 15)
    fault = f"custom_hooks=[{{type: Fault, what: weight, value: 1e4, at: {at}, once: '{once}'}}]"
    done = run_faulty(torture, number, config, fault, mode, 1)
    check_saved(torture, number, done)
    check_end(torture, number, action, done)
    expected = DIVERGED if action in ("raise", "stop") else 0
    torture.require(done.code == expected and "spike" in done.text, f"expected exit code {expected}, and a word on the spike", done)
    return done.code


POLICIES, ACTIONS, MODES = ("apply", "skip", "raise"), ("raise", "stop", "warn", "rollback"), ("eager", "graph")


def cases(torture):
    """(function, its arguments): all of them; of the short form some of each kind."""
    data = [(from_data, *case) for case in itertools.product(FAULTS, POLICIES, ACTIONS, MODES, (False, True))]
    within = [(from_within, *case) for case in itertools.product(
        ("value", "gradient", "weight", "optimizer"), ("nan", "inf"), POLICIES, ACTIONS, MODES, (1, 2))]
    apart = [(one_rank_at_a_save, *case) for case in itertools.product(("raise", "stop", "rollback"), MODES)]
    spikes = [(spike, *case) for case in itertools.product(ACTIONS, MODES)]
    if torture.long:
        return data + within + apart + spikes
    always = [(from_data, "all NaN", "skip", "raise", mode, scaled) for mode in MODES for scaled in (False, True)]
    some = torture.random.sample
    return some(data, 12) + always + some(within, 14) + some(apart, 3) + some(spikes, 4)


def run(torture):
    for fault, (bad, _) in FAULTS.items():
        write_data(torture.folder / f"{fault.replace(' ', '_')}.safetensors", bad)
    codes, chosen = {}, cases(torture)
    for number, (call, *arguments) in enumerate(chosen):
        torture.case = f"case {number}: {call.__name__} {arguments}"
        code = call(torture, number, *arguments)
        codes[code] = codes.get(code, 0) + 1
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    return f"{len(chosen)}/{len(chosen)} runs, none saved numbers that are not finite, none ended well with them unwarned: {ends}"
