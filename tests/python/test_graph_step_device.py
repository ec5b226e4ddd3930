"""What duet.graph_step says of parameters on a GPU: over the stand-in for the CUDA runtime, where kernels do nothing."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import duet
import toy

STAND_IN = pathlib.Path(duet._duet.__file__).absolute().parents[2] / "tests/cuda_stand_in/libcuda.so.1"
CODE = """
import sys
import torch
import duet


def lr_on_the_device(parameters):
    optimizer = torch.optim.AdamW(parameters, capturable=True)
    optimizer.param_groups[0]["lr"] = torch.zeros((), device="cuda")
    return optimizer


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, capturable=True),
    "lr on the device": lr_on_the_device,
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}
# As transformers do.
def loss(model, x):
    return model(x).square().mean() * (2 if torch.cuda.is_current_stream_capturing() else 1)


for name, make in OPTIMIZERS.items():
    print(name, file=sys.stderr, flush=True)
    model = torch.nn.Linear(4, 3).cuda()
    optimizer = make(model.parameters())
    step = duet.graph_step(model, loss, optimizer, check="off", verify_interval=0)
    for i in range(16):
        if name == "lr on the device":  # a copy, which is made there; a kernel that fills is not
            optimizer.param_groups[0]["lr"].copy_(torch.tensor(1.0 / (i + 1)))
        step(torch.zeros(5, 4, device="cuda"))
    for report in step.report():
        print(name, report["state"], report["replays"], report["reason"], sep=": ")
"""


@pytest.mark.slow
@pytest.mark.skipif(not STAND_IN.exists(), reason=f"{STAND_IN} is not built")
def test_a_step_is_captured_but_for_an_optimizer_that_counts_on_the_host():
    environment = {**os.environ, "LD_PRELOAD": str(STAND_IN), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    captured = [line.split(": ") for line in done.stdout.splitlines() if ": captured: " in line]
    assert [name for name, *_ in captured] == ["SGD", "AdamW", "lr on the device", "Adam"], done.stdout
    assert all(int(replays) >= 10 for _, _, replays, _ in captured), captured
    of_others, of_adam = done.stderr.split("Adam\n")
    assert "step() (Adam) reads values back to the host" in of_adam
    assert "[graph_step]" not in of_others


def test_one_device_for_all_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, device="meta"))
    with pytest.raises(duet.ConfigError, match="'1.weight' lies on meta, expected all on one device, cpu"):
        duet.graph_step(model, toy.loss, toy.sgd(model))
