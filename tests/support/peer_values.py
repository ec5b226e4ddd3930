#!/usr/bin/env python3
"""Prints the numbers of peers that stand in tests: of timm in core/train_step_test.cpp (AdaptiveClippingIsThatOfTimm), of
fvcore in hooks/precise_bn_hook_test.cpp (StatisticsAreThoseOfFvcore).

usage: peer_values.py    after pip install --no-deps timm==1.0.31 fvcore==0.1.5.post20221221 tqdm, with torch
"""

import importlib.metadata
import importlib.util
import pathlib

import torch
from torch import nn


def module(package, path):
    """One file of a package, without the rest and what that needs."""
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, pathlib.Path(folder) / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def clipped_gradient():
    """As LambdaTask of train_step_test.cpp."""
    weight = nn.Parameter((torch.arange(12.0) / 16).view(3, 4))
    weight.grad = torch.tensor([3.0, 0, 0, 0, 0, 0.005, -0.003, 0, 0, 1, -2, -4]).view(3, 4)
    module("timm", "utils/agc.py").adaptive_clip_grad([weight], 0.02, 1e-3)
    print("timm", importlib.metadata.version("timm"), weight.grad.flatten().tolist())


def statistics():
    """As Model and data() of precise_bn_hook_test.cpp."""
    a, b = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    model = nn.ModuleList([a, b])
    model.forward = lambda x: b(a(x).square() * 2 + x)
    x = (torch.arange(60.0) * 7).remainder(13).view(10, 2, 3)
    module("fvcore", "nn/precise_bn.py").update_bn_stats(model, list(x.split(4)), 3)
    print("fvcore", importlib.metadata.version("fvcore"), {name: value.tolist() for name, value in model.named_buffers()})


if __name__ == "__main__":
    clipped_gradient()
    statistics()
