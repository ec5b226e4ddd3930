"""R16: weights to and from Python, and damaged files of them (duet_weights_tests, tests/foreign/exchange_weights.py)."""

import subprocess
import sys

from torture import HERE, test_program


def run(torture):
    torture.case = "duet_weights_tests"
    tests = test_program(torture, "duet_weights_tests", "*" if torture.long else "-*Damage*:*Random*")
    torture.case = "tests/foreign/exchange_weights.py"
    line = [sys.executable, HERE.parent / "foreign" / "exchange_weights.py", torture.build / "tests" / "duet_convert_weights"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    torture.require(done.returncode in (0, 77), "the exchange with Python failed", done.stdout + done.stderr)
    exchanged = "no PyTorch here to exchange with" if done.returncode else done.stdout.strip().splitlines()[-1]
    return f"{tests}; {exchanged}"
