import pytest
import torch

import duet

torch.set_num_threads(1)
duet.set_log_level("warning")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=["eager", "graph"])
def mode(request):
    return request.param
