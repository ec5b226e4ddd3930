#!/usr/bin/env python3
"""Writes io/pt_files/: files of torch.save as Python programs leave them, and some that must be refused.

usage: make_pt_files.py FOLDER        needs torch and numpy; the values are those that pt_file_test.cpp computes
"""

import collections
import os
import pathlib
import sys
import types
import zipfile

import numpy
import torch


class HistoryBuffer:
    """As mmengine's: arrays, and functions by name."""

    def __init__(self):
        self._log_history = numpy.array([0.5, 0.25])
        self._count_history = numpy.array([1, 1])
        self._max_length = 1000000
        self._statistics_methods = collections.OrderedDict(mean=HistoryBuffer.mean)

    def mean(self):
        return self._log_history.mean()


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/duet-ran-code",)


def counting(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def state_dict():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(counting(*parameter.shape) / 4)
    state = module.state_dict()
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.complex64):
        state[str(dtype).removeprefix("torch.")] = counting(5, dtype=dtype)
    state["bool"] = torch.tensor([True, False, True])
    base = counting(2, 3, 4)
    state["base"] = base
    state["transposed"] = base.transpose(0, 2)
    state["slice"] = base[1, 1:, ::2]
    state["expanded"] = torch.ones(1).expand(5, 2)
    state["scalar"] = torch.tensor(7)
    state["empty"] = torch.empty(0, 3, dtype=torch.float16)
    state["parameter"] = torch.nn.Parameter(counting(2))
    state["nan"] = torch.tensor([0x7FC12345, -1], dtype=torch.int32).view(torch.float32)
    return state


def training_checkpoint():
    """What mmengine's Runner saves."""
    module = types.ModuleType("mmengine.logging.history_buffer")
    module.HistoryBuffer = HistoryBuffer
    HistoryBuffer.__module__ = module.__name__
    for name in ("mmengine", "mmengine.logging", module.__name__):
        sys.modules[name] = module
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(counting(2, 3))
        model.bias.copy_(counting(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model.weight.grad = torch.ones(2, 3)
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    with torch.no_grad():
        model.weight.copy_(counting(2, 3))
    state = model.state_dict()
    return {
        "meta": {"epoch": 2, "iter": 2**40, "lr": 0.125, "seed": None, "cfg": "a = 1\n", "classes": ("cat", "dog"),
                 "shape": torch.Size([2, 3]), "dtype": torch.float16, "deterministic": True, "huge": 2**70,
                 "raw": b"\x00\xff", "best": numpy.float64(0.5), "shares": {1: 0.5}},
        "state_dict": state,
        "message_hub": {"log_scalars": {"train/loss": HistoryBuffer()}},
        "optimizer": optimizer.state_dict(),
        "param_schedulers": [schedule.state_dict()],
        "ema_state_dict": {"steps": torch.tensor(3), **{f"module.{name}": value + 1 for name, value in state.items()}},
    }


def repacked(source, target, compression=zipfile.ZIP_STORED, replaced=None):
    """The same archive with other contents or packed in another way, CRCs right, without paths of this machine."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for item in old.infolist():
            if item.filename.endswith("debug_pkl"):
                continue
            content = (replaced or {}).get(item.filename.split("/", 1)[1], old.read(item))
            new.writestr(zipfile.ZipInfo(item.filename), content, compression)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state_dict(), folder / "state_dict.pt")
    torch.save(training_checkpoint(), folder / "mmengine.pth")
    weights = {"weight": counting(2, 3), "bias": counting(2)}
    torch.save({f"module.{name}": value for name, value in weights.items()}, folder / "parallel.pt")
    torch.save({"model": weights, "optimizer": {"state": {}}, "epoch": 3}, folder / "wrapped.pt")
    torch.save(weights, folder / "protocol4.pt", pickle_protocol=4)
    torch.save({"embedding": weights["weight"], "head": weights["weight"], "bias": weights["bias"]}, folder / "tied.pt")
    # To be refused
    torch.save(weights, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({**weights, "evil": Evil()}, folder / "forbidden.pt")
    torch.save({"weight": torch.ones(2, dtype=torch.complex128)}, folder / "complex.pt")
    torch.save({"weight": torch.eye(2).to_sparse()}, folder / "sparse.pt")
    torch.save({"weight": torch.ones(2, dtype=torch.uint16)}, folder / "uint16.pt")
    torch.save({"weight": torch.ones(2), "score": numpy.float64(0.5)}, folder / "numpy_beside.pt")
    torch.save([torch.ones(2)], folder / "list.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), folder / "whole.pt")
    repacked(folder / "whole.pt", folder / "script.pt")
    (folder / "whole.pt").unlink()
    repacked(folder / "protocol4.pt", folder / "compressed.pt", zipfile.ZIP_DEFLATED)
    repacked(folder / "protocol4.pt", folder / "big_endian.pt", zipfile.ZIP_STORED, {"byteorder": b"big"})
    with zipfile.ZipFile(folder / "no_pickle.pt", "w") as archive:
        archive.writestr(zipfile.ZipInfo("photos/readme.txt"), "hello")
    zipfile.ZIP64_LIMIT = 1  # numbers stand where those beyond 4 GB do
    repacked(folder / "protocol4.pt", folder / "zip64.pt")


if __name__ == "__main__":
    main()
