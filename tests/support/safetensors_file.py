"""Writes a safetensors file with nothing but torch, for the scripts that make references on the spot."""

import ctypes
import json

import torch

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):  # keeps all aligned
        tensor = tensor.detach().contiguous()
        begin = len(data)
        data += ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
