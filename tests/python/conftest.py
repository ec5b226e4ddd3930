import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # their loops in PyTorch run on the CPU; a trainer would take a GPU that is there

import pytest  # noqa: E402
import torch  # noqa: E402

import duet  # noqa: E402

torch.set_num_threads(1)
duet.set_log_level("warning")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=["eager", "graph"])
def mode(request):
    return request.param
