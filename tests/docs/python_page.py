"""Runs the Python blocks of pages, each page in a process of its own that has torch and duet loaded already.

Reads lines of JSON: {"folder"} begins a page, {"name", "code", "prints"} is its next block and is answered by a line
{"failed": text or null}, {} ends it.
"""

import contextlib
import io
import json
import os
import sys
import traceback

import torch

import duet

torch.set_num_threads(1)
duet.set_log_level("warning")


def next_message():
    """Byte by byte: what this process reads ahead, the next one would miss."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return json.loads(line or b"{}")


def run_block(block, names):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], block["name"], "exec"), names)
    except BaseException:
        return f"{out.getvalue()}{traceback.format_exc()}"
    if block["prints"] not in out.getvalue():
        return f"'{block['prints']}' is not in what it printed:\n{out.getvalue()}"
    return None


def answer(failed):
    print(json.dumps({"failed": failed}), flush=True)


def run_page(folder):
    os.chdir(folder)
    sys.path.insert(0, folder)
    torch.manual_seed(0)
    names = {"__name__": "__main__"}
    while block := next_message():
        answer(run_block(block, names))


def main():
    while page := next_message():
        child = os.fork()
        if child == 0:
            run_page(page["folder"])
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            answer(f"the process ended with status {status}")


if __name__ == "__main__":
    main()
