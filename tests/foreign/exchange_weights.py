#!/usr/bin/env python3
"""Weights go from Python to duet and back, bit by bit: state_dicts at random as .pt and as safetensors files.

usage: exchange_weights.py CONVERT_WEIGHTS [--count N]      exit code 77: this Python has no torch
"""

import argparse
import collections
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
try:
    import safetensors.torch
except ImportError as missing:
    safetensors = None
    print(f"skipped: safetensors files ({missing})")

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)


def random_tensor(draw):
    shape = [draw.choice((0, 1, 2, 3, 5, 8)) for _ in range(draw.randrange(5))]
    dtype = draw.choice(DTYPES)
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        tensor = torch.tensor([draw.random() < 0.5 for _ in range(count)], dtype=dtype).reshape(shape)
    else:
        size = torch.empty((), dtype=dtype).element_size()
        raw = bytearray(draw.randbytes(count * size))  # NaN, infinities, denormals: any bits
        tensor = (torch.frombuffer(raw, dtype=dtype) if count else torch.empty(0, dtype=dtype)).reshape(shape)
    kind = draw.randrange(6)
    if kind == 0 and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if kind == 1 and tensor.dim() > 0:
        return tensor[::2]
    if kind == 2:
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if kind == 3 and tensor.is_floating_point():
        return torch.nn.Parameter(tensor)
    return tensor


def random_value(draw):
    return draw.choice((True, False, 0, -1, draw.getrandbits(62), -draw.getrandbits(40), draw.random(), float("inf"), -0.0,
                        1e-310, "", "text", "ünïcode ⚡", draw.randbytes(8).hex()))


def random_tree(draw, depth=0):
    tree = draw.choice((dict, collections.OrderedDict))()
    shared = random_tensor(draw)
    for i in range(draw.randrange(1, 7)):
        key = draw.choice((f"layer{i}", f"a.b{i}", f"schlüssel {i}", i))
        kind = draw.randrange(10)
        if kind < 5:
            tree[key] = random_tensor(draw)
        elif kind < 6:
            tree[key] = shared
        elif kind < 8 and depth < 3:
            tree[key] = random_tree(draw, depth + 1)
        elif kind < 9:
            tree[key] = [random_value(draw), (random_value(draw), random_tensor(draw))]
        else:
            tree[key] = random_value(draw)
    return tree


def flat(tree, prefix=""):
    """What duet makes of it: dotted names."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, (dict, list, tuple)):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def bits(value):
    if isinstance(value, torch.Tensor):
        value = value.detach().clone(memory_format=torch.contiguous_format)
        raw = value.reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0, dtype=torch.uint8)
        return value.dtype, tuple(value.shape), bytes(raw.tolist())
    return type(value), value.hex() if isinstance(value, float) else value


def optimizer_state(draw):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = draw.choice((torch.optim.AdamW, torch.optim.RAdam, torch.optim.RMSprop))(module.parameters(), lr=draw.random())
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    return {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": draw.randrange(100)}


def without_none(tree):
    if isinstance(tree, dict):
        return {key: without_none(value) for key, value in tree.items() if value is not None}
    return tree if not isinstance(tree, list) else [without_none(value) for value in tree]


def check(expected, found, where):
    expected = dict(expected)
    assert expected.keys() == found.keys(), f"{where}: {sorted(expected.keys() ^ found.keys())}"
    for name, value in expected.items():
        assert bits(value) == bits(found[name]), f"{where}: {name}: {bits(value)} became {bits(found[name])}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("convert_weights")
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    draw = random.Random(5)
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trees, lines = [], []
        for i in range(options.count):
            tree = optimizer_state(draw) if i % 20 == 0 else random_tree(draw)
            trees.append(dict(flat(without_none(tree))))
            torch.save(tree, folder / f"{i}.pt", pickle_protocol=draw.choice((2, 2, 2, 4)))
            lines.append(f"{folder}/{i}.pt {folder}/{i}.back.pt")
            tensors = {key: value for key, value in trees[-1].items() if isinstance(value, torch.Tensor)}
            if safetensors and tensors:
                copies = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
                safetensors.torch.save_file(copies, folder / f"{i}.safetensors")
                lines.append(f"{folder}/{i}.safetensors {folder}/{i}.back.safetensors")
                lines.append(f"{folder}/{i}.safetensors {folder}/{i}.weights.pt")
        (folder / "list").write_text("\n".join(lines) + "\n", encoding="utf-8")
        subprocess.run([options.convert_weights, folder / "list"], check=True)

        counted = 0
        for i, tree in enumerate(trees):
            for load in ({"weights_only": True}, {"weights_only": False}, {"weights_only": True, "mmap": True}):
                check(tree, torch.load(folder / f"{i}.back.pt", **load), f"tree {i}, .pt, {load}")
            tensors = {key: value for key, value in tree.items() if isinstance(value, torch.Tensor)}
            counted += len(tensors)
            if safetensors and tensors:
                check(tensors, safetensors.torch.load_file(folder / f"{i}.back.safetensors"), f"tree {i}, safetensors")
                check(tensors, torch.load(folder / f"{i}.weights.pt", weights_only=True), f"tree {i}, safetensors to .pt")
    print(f"{len(trees)} trees with {counted} tensors: equal bits both ways")


if __name__ == "__main__":
    main()
