"""What replays rely on: each op that PyTorch tags as pointwise may write its result over an input of the same layout."""

import numpy as np
import torch

SHAPE = (33, 1031)
ARGUMENTS = {"number": 2, "float": 0.5, "int": 1, "bool": False}


def array_of(dtype, random):
    if dtype == torch.bool:
        return random.random(SHAPE) > 0.5
    if dtype == torch.int64:
        return random.integers(1, 20, SHAPE)
    return random.uniform(0.1, 0.9, SHAPE).astype("float32")


def out_variant(packet, schema):
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        same = [(a.name, str(a.type)) for a in arguments[:-1]] == [(a.name, str(a.type)) for a in schema.arguments]
        if same and candidate._schema.is_mutable and candidate.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU):
            return candidate
    return None


def pointwise_ops():
    for name in sorted({schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}):
        packet = getattr(torch.ops.aten, name[6:], None)
        for overload in packet.overloads() if packet is not None else []:
            op = getattr(packet, overload)
            if torch.Tag.pointwise in op.tags and not op._schema.is_mutable and len(op._schema.returns) == 1:
                yield name[6:], op._schema, out_variant(packet, op._schema)


def arguments_of(schema, arrays):
    arrays = iter(arrays)
    return [torch.from_numpy(next(arrays)) if str(a.type) == "Tensor" else
            a.default_value if a.has_default_value() else ARGUMENTS.get(str(a.type)) for a in schema.arguments]


def result_over(op, schema, arrays, over):
    """The result where it lies in the memory of one of the arrays, or (None) in its own; None if the op takes no such."""
    arrays = [array.copy() for array in arrays]
    out = torch.empty(SHAPE, dtype=torch.from_numpy(arrays[0]).dtype)
    if over is not None:
        out = torch.from_numpy(arrays[over])
    before = out.data_ptr()
    try:
        op(*arguments_of(schema, arrays), **{op._schema.arguments[-1].name: out})
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return out.numpy() if out.data_ptr() == before and out.shape == SHAPE else None


def test_pointwise_ops_may_write_over_their_inputs():
    random, tried = np.random.default_rng(0), set()
    for name, schema, out in pointwise_ops():
        tensors = sum(str(a.type) == "Tensor" for a in schema.arguments)
        for dtype in (torch.float32, torch.int64, torch.bool) if out is not None and tensors else ():
            arrays = [array_of(dtype, random) for _ in range(tensors)]
            expected = result_over(out, schema, arrays, None)
            for over in range(tensors) if expected is not None else ():
                assert result_over(out, schema, arrays, over).tobytes() == expected.tobytes(), (name, dtype, over)
                tried.add(name)
    assert len(tried) > 100
