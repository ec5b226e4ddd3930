#!/usr/bin/env python3
"""Stands in for every program that a proof runs: it answers as they do at their best, or as $DUET_SABOTAGE says."""

import json
import os
import pathlib
import re
import sys
import time

NAME, WORDS, SABOTAGE = pathlib.Path(sys.argv[0]).name, sys.argv[1:], os.environ.get("DUET_SABOTAGE", "")


def word(key, default=""):
    return next((each.split("=", 1)[1] for each in WORDS if each.startswith(key + "=")), default)


def after(flag, default=""):
    return WORDS[WORDS.index(flag) + 1] if flag in WORDS else default


def weights(mode):
    spoilt = SABOTAGE == "differs" and mode == "graph"
    unstable = SABOTAGE == "atomics" and os.urandom(8).hex()
    return "spoilt" if spoilt else unstable or "good"


def train():
    """The part of `duet train` that examples.py and kill.py look at."""
    mode = after("--mode", word("mode"))
    work, steps = pathlib.Path(word("work_dir")), int(word("trainer.max_steps", "120"))
    checkpoints = work / "checkpoints"
    names = os.listdir(checkpoints) if after("--resume") == "auto" and checkpoints.exists() else []
    first = max((int(name.split("-")[1]) for name in names), default=0)
    print(f"info training in mode {mode} from step {first}/{steps}", file=sys.stderr, flush=True)
    for step in range(first + 1, steps + 1):
        time.sleep(0.002 if "--json" in WORDS else 0)
        print(f"info step {step}/{steps}", file=sys.stderr, flush=True)
        if (step % 20 == 0 or step == steps) and SABOTAGE != "no_checkpoint":
            folder = checkpoints / f"step-{step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.safetensors").write_text(weights(mode), encoding="utf-8")
    if "--json" in WORDS:
        broken = SABOTAGE == "lost_by_a_kill" and first > 0
        report = {"weights_hash": "other" if broken else "hash", "final_loss": 1.0,
                  "fallbacks": ["refused"] if SABOTAGE == "falls_back" else []}
        pathlib.Path(after("--json")).write_text(json.dumps(report), encoding="utf-8")
    replayed = 0 if SABOTAGE == "falls_back" else steps - 6
    print(f"finished after {steps} steps in {mode} mode ({replayed} replayed, {steps - replayed} eager)")


def time_steps():
    waits = 1.0 if SABOTAGE == "waits" and WORDS[1] == "graph" else 0.0
    for _ in sys.stdin:
        print(json.dumps({"us": 10.0 if WORDS[1] == "graph" else 30.0, "waits": waits, "mib": 64}), flush=True)


def main():
    if WORDS == ["doctor"]:
        gpus = {"no_gpu": 0, "one_gpu": 1}.get(SABOTAGE, 2)
        print(f"versions\n  duet            0.1.0\nmachine\n  cuda_devices    {gpus}")
        return
    if SABOTAGE == "fails":
        sys.exit(f"{NAME} fails")
    if SABOTAGE == "hangs":
        time.sleep(600)
    if NAME == "duet" and WORDS[0] == "train":
        train()
    elif NAME == "duet_device_times":
        time_steps()
    elif re.fullmatch(r"duet_\w+_tests", NAME):
        print(f"[  PASSED  ] {0 if SABOTAGE == 'no_tests' else 3} tests.")
    else:
        print(f"weights {weights(WORDS[0] if WORDS else 'eager')}")


if __name__ == "__main__":
    main()
