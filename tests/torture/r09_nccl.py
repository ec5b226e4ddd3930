"""R9: both modes on a GPU (duet_device_tests, which scripts/gpu runs too), and where there are two, the faults of R8 with NCCL
between them."""

import re

from r08_lost_ranks import faults
from torture import LeftOut, test_program


def run(torture):
    found = re.search(r"cuda_devices\s+(\d+)", torture.good("doctor").text)
    devices = int(found.group(1)) if found else 0
    if devices == 0:
        raise LeftOut("needs a machine with GPUs")
    torture.case = "duet_device_tests"
    line = test_program(torture, "duet_device_tests", "*")
    if devices == 1:
        torture.left_out.append("NCCL (needs two GPUs)")
        return line
    ranks = faults(torture, torture.count(2, 100), "--set", "device=cuda")
    return f"{line}; with NCCL {ranks}"
