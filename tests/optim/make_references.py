#!/usr/bin/env python3
"""Writes what torch.optim and GradScaler compute on this CPU: FOLDER/{scaler,lbfgs,optimizer,sparse_adam}.safetensors.

    make_references.py FOLDER     the references; fails where the cases in the sources are not those described here
    make_references.py --cases    the cases in the sources: optimizers/{lbfgs,optimizer}_cases.inc
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "optimizers"), str(HERE.parent / "support")]

import lbfgs_reference
import optimizer_reference
import scaler_reference
import sparse_adam_reference
import torch
from safetensors_file import write_safetensors

CASES = {"lbfgs_cases.inc": lbfgs_reference.cases_text(), "optimizer_cases.inc": optimizer_reference.cases_text()}


def main():
    if sys.argv[1] == "--cases":
        for name, text in CASES.items():
            (HERE / "optimizers" / name).write_text(text)
        return
    for name, text in CASES.items():
        if (HERE / "optimizers" / name).read_text() != text:
            sys.exit(f"optimizers/{name} is not what its script describes; run make_references.py --cases")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for module in (scaler_reference, lbfgs_reference, optimizer_reference, sparse_adam_reference):
        name = module.__name__.removesuffix("_reference")
        write_safetensors(folder / f"{name}.safetensors", dict(module.references()))


if __name__ == "__main__":
    main()
