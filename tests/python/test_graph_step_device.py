"""What duet.graph_step says of parameters on a GPU: over the stand-in for the CUDA runtime, where kernels do nothing."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

import duet
import toy

STAND_IN = pathlib.Path(duet._duet.__file__).absolute().parents[2] / "tests/cuda_stand_in/libcuda.so.1"
CODE = """
import torch
import duet

duet.set_log_level("error")
model = torch.nn.Linear(4, 3).cuda()
optimizer = {optimizer}
step = duet.graph_step(model, lambda m, x: m(x).square().mean(), optimizer, check="off", verify_interval=0)
for i in range(16):
    {before}
    step(torch.zeros(5, 4, device="cuda"))
for report in step.report():
    print(report["state"], report["replays"], report["reason"])
"""


def run_on_device(*words):
    if not STAND_IN.exists():
        pytest.skip(f"{STAND_IN} is not built")
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "LD_PRELOAD": str(STAND_IN), "CUDA_VISIBLE_DEVICES": "0"})


def test_these_tests_take_no_gpu_that_is_there():
    tests = pathlib.Path(__file__).with_name("test_trainers.py")
    done = run_on_device("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), "-k", "parameter_groups and eager")
    assert done.returncode == 0, done.stdout


def run(optimizer, before="pass"):
    """(reports, warnings) of 16 steps."""
    code = textwrap.dedent(CODE).format(optimizer=optimizer, before=before)
    done = run_on_device("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def replays(reports):
    """Of each captured signature."""
    return [int(line.split()[1]) for line in reports if line.startswith("captured")]


@pytest.mark.parametrize("optimizer", ["SGD(model.parameters(), lr=0.1, momentum=0.9)",
                                       "AdamW(model.parameters(), lr=0.1, capturable=True)"])
def test_is_captured(optimizer):
    reports, warnings = run("torch.optim." + optimizer)
    assert len(replays(reports)) == 1 and replays(reports)[0] >= 10, reports
    assert "[graph_step]" not in warnings


def test_says_that_step_counts_are_on_the_host():
    reports, warnings = run("torch.optim.Adam(model.parameters(), lr=0.1)")
    assert reports[-1].startswith("eager 0 ") and "computes on the host" in reports[-1]
    assert "found Adam without capturable=True over parameters on cuda:0" in warnings


def test_an_lr_on_the_device_is_one_recording_whatever_it_holds():
    assign = 'optimizer.param_groups[0]["lr"] = lr = torch.zeros((), device="cuda")'
    # A copy, which is made there; a kernel that fills is not.
    reports, _ = run("torch.optim.AdamW(model.parameters(), capturable=True); " + assign, "lr.copy_(torch.tensor(1.0 / (i + 1)))")
    assert len(replays(reports)) == 1 and replays(reports)[0] >= 10, reports


def test_one_device_for_all_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, device="meta"))
    with pytest.raises(duet.ConfigError, match="'1.weight' lies on meta, expected all on one device, cpu"):
        duet.graph_step(model, toy.loss, torch.optim.SGD(model.parameters(), lr=0.1))
