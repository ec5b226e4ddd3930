#!/usr/bin/env python3
"""Times the models of model_times.cpp in plain PyTorch: torch (eager) or compile (torch.compile, reduce-overhead).

usage: peers.py MODEL torch|compile      as model_times.py drives it: numbers of steps in, a line of JSON for each out
"""

import json
import os
import pathlib
import sys
import time

import torch

import resnet50

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers"))
import models  # noqa: E402

WARM_UP = 10


def tokens(vocabulary, samples, length):
    return torch.randint(vocabulary, (samples, length)), torch.randint(vocabulary, (samples, length))


# name -> (module, one batch, dtype of autocast)
CASES = {
    **{name: (lambda case=case: (*case(), None)) for name, case in models.CASES.items()},
    "GPT d384 L6, 16x256": lambda: (models.Gpt(256, 384, 6, heads=6), tokens(65, 16, 256), None),
    "GPT-2 124 M, 8x1024, bf16": lambda: (models.Gpt(1024, 768, 12, vocabulary=50257, heads=12), tokens(50257, 8, 1024),
                                          torch.bfloat16),
    "ResNet-50 (TorchScript), 32x224x224": lambda: (
        resnet50.WithLoss(), (torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))), None),
}


def main():
    name, kind = sys.argv[1:]
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = not os.environ.get("DUET_REHEARSAL")
    model, batch, amp = CASES[name]()
    model = model.cuda().train()
    batch = [tensor.pin_memory() for tensor in batch]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model, mode="reduce-overhead") if kind == "compile" else model

    def step():
        inputs = [tensor.to("cuda", non_blocking=True) for tensor in batch]
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
            loss = forward(*inputs)
        loss.backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    for line in sys.stdin:
        count = int(line)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        found = {"us": 1e6 * (time.perf_counter() - began) / count, "mib": torch.cuda.max_memory_reserved() / 2**20}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
