#!/usr/bin/env python3
"""Writes what torch.optim and GradScaler compute on this CPU: FOLDER/{optimizer,scaler,schedule,sparse_adam}.safetensors,
and FOLDER/optimizer.json: the options of each case.

usage: make_references.py FOLDER
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "optimizers"), str(HERE / "schedules"), str(HERE.parent / "support")]

import optimizer_reference
import scaler_reference
import schedule_reference
import sparse_adam_reference
import torch
from safetensors_file import write_safetensors


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for module in (scaler_reference, optimizer_reference, schedule_reference, sparse_adam_reference):
        name = module.__name__.removesuffix("_reference")
        write_safetensors(folder / f"{name}.safetensors", dict(module.references()))
        if hasattr(module, "cases"):
            (folder / f"{name}.json").write_text(json.dumps(list(module.cases())))


if __name__ == "__main__":
    main()
