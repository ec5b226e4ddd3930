"""R11: numbers that are not finite, from data, loss or weights, under every policy and in both modes.

No run saves weights that are not finite. None ends as a success with them, unless it was configured to warn or stop
alone, and has warned.
"""

import itertools
import json
import re
import struct

from bad_input_cases import safetensors
from torture import FORBIDDEN

SAMPLES, FEATURES, STEPS = 64, 8, 120
CONFIG = """
model: {type: Mlp, in_features: 8, hidden: [8]}
data: {train: {type: Safetensors, path: %s, batch_size: 8}}
trainer: {max_steps: 120}
optim_wrapper: {optimizer: {type: SGD, lr: %s, momentum: 0.9}, non_finite: %s%s}
default_hooks: {nan_guard: {action: %s, interval: 10, max_consecutive_skips: 30}, checkpoint: {interval: 20}, logger: {interval: 20}}
"""
DIVERGED = 5


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
    """Whether a file of float32 tensors holds a number that is not finite."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    for name, tensor in header.items():
        if name == "__metadata__" or tensor["dtype"] != "F32":
            continue
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        bits = struct.unpack(f"<{(end - begin) // 4}I", content[begin:end])
        if any(value >> 23 & 255 == 255 for value in bits):
            return True
    return False


def one_case(torture, number, fault, policy, action, mode, scaled):
    config = torture.folder / f"{number}.yaml"
    _, rate = FAULTS[fault]
    amp = ", amp: bf16, loss_scale: {init_scale: 1024}" if scaled else ""
    config.write_text(CONFIG % (torture.folder / f"{fault.replace(' ', '_')}.safetensors", rate, policy, amp, action))
    work_dir = torture.folder / str(number)
    done = torture.run("train", config, f"work_dir={work_dir}", "--mode", mode, "--json", f"{number}.json")
    torture.require(not FORBIDDEN.search(done.text), "shows what no user should see", done)
    for path in work_dir.glob("checkpoints/step-*/model.safetensors"):
        torture.require(not not_finite(path), f"{path.parent.name} holds weights that are not finite", done)
    if fault == "nothing":
        torture.require(done.code == 0, "a run whose numbers are all finite failed", done)
        return done
    # A rollback with nothing to go back to is an error of checkpoints.
    codes = (0, DIVERGED, 4) if action == "rollback" else (0, DIVERGED)
    torture.require(done.code in codes, f"exit code {done.code}", done)
    if done.code == 0:
        last = work_dir / "checkpoints" / f"step-{STEPS}"
        told = action in ("warn", "stop") and "warning [NaNGuardHook]" in done.text
        torture.require(last.exists() or told, "success without the weights of the last step", done)
        # Who asks for "warn" or "stop" is warned, and gets the weights as they were.
        torture.require(fault != "all NaN" or action in ("warn", "stop"), "success on data that are all NaN", done)
    else:
        torture.require(re.search(r"error: .*not finite|error: .*skipped", done.text, re.DOTALL), "does not say why", done)
    if fault == "all NaN" and policy == "skip" and action == "raise":
        torture.require(done.code == DIVERGED, f"expected exit code {DIVERGED}", done)
        torture.require("no checkpoint" in done.text or "step-" in done.text, "does not name the last good checkpoint", done)
    return done


def run(torture):
    for fault, (bad, _) in FAULTS.items():
        write_data(torture.folder / f"{fault.replace(' ', '_')}.safetensors", bad)
    every = list(itertools.product(FAULTS, ("apply", "skip", "raise"), ("raise", "stop", "warn", "rollback"),
                                   ("eager", "graph"), (False, True)))
    cases = every if torture.long else torture.random.sample(every, 40) + [
        ("all NaN", "skip", "raise", mode, scaled) for mode in ("eager", "graph") for scaled in (False, True)]
    codes = {}
    for number, case in enumerate(cases):
        torture.case = f"case {number}: {case}"
        code = one_case(torture, number, *case).code
        codes[code] = codes.get(code, 0) + 1
    ends = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    return f"{len(cases)}/{len(cases)} runs, none saved weights that are not finite, none ended well with them unwarned: {ends}"
