"""The protocol by which model_times.py drives a contestant: numbers of steps in, a line of JSON for each out."""

import json
import sys
import time


def serve(step, synchronize, megabytes):
    """Answers until the input ends. `step` trains once on the device, and waits for nothing."""
    for line in sys.stdin:
        count = int(line)
        synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        found = {"us": 1e6 * (time.perf_counter() - began) / count, "mib": megabytes()}
        print(json.dumps(found), flush=True)
