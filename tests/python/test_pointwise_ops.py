"""What replays rely on: each op that PyTorch tags as pointwise may write its result over an input of the same layout."""

import numpy as np
import torch

import duet

SHAPE = (33, 1031)
ARGUMENTS = {"number": 2, "float": 0.5, "int": 1, "bool": False}

# Before the first step, which looks for out variants.
LIBRARY = torch.library.Library("duet_pointwise_test", "DEF")
LIBRARY.define("plus_one(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
LIBRARY.define("plus_one.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", tags=(torch.Tag.pointwise,))
LIBRARY.impl("plus_one", lambda x: x + 1, "CPU")
LIBRARY.impl("plus_one.out", lambda x, *, out: out.fill_(1).add_(x), "CPU")


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


class Buffers(torch.nn.Module):
    """A step that computes buffers beside its loss."""

    def __init__(self, buffers, compute):
        super().__init__()
        self.weight, self.compute = torch.nn.Parameter(torch.ones(8)), compute
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        with torch.no_grad():
            self.compute(self)
        return (self.weight * x).sum()


def buffers_after(mode, make_buffers, compute, threads):
    """The bits of the buffers after some steps."""
    torch.set_num_threads(threads)
    try:
        model = Buffers(make_buffers(), compute)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = duet.graph_step(model, lambda net, x: net(x), optimizer, check="off", verify_interval=0, fuse_after=0)
        for n in range(5):
            if mode == "graph":
                step(torch.full((8,), float(n)))
            else:
                model(torch.full((8,), float(n))).backward()
        assert mode == "eager" or step.report()[-1]["state"] == "captured", step.report()
        return {name: tensor.numpy().tobytes() for name, tensor in model.named_buffers()}
    finally:
        torch.set_num_threads(1)


def expect_same_buffers(make_buffers, compute, threads=1):
    assert buffers_after("graph", make_buffers, compute, threads) == buffers_after("eager", make_buffers, compute, threads)


def nans(count):
    bits = np.random.default_rng(0).integers(1, 1 << 22, count, dtype=np.uint32) | np.uint32(0x7FC00000)
    return torch.from_numpy(bits.view(np.float32))


def test_threads_that_end_within_a_vector_keep_the_nan_that_pytorch_keeps():
    count = 65792  # three of four threads share it: 21931 each
    expect_same_buffers(lambda: {"a": nans(count), "b": nans(count).flip(0).clone(), "y": torch.zeros(count)},
                        lambda net: net.y.copy_(net.a * net.b), threads=4)


def test_buffers_over_one_numpy_array_are_written_before_they_are_read():
    def make():
        memory = np.ones((64, 8192), np.float32)
        return {"whole": torch.from_numpy(memory), "row": torch.from_numpy(memory[-1]), "y": torch.zeros(64, 8192)}

    expect_same_buffers(make, lambda net: net.y.copy_(net.whole.mul_(1.5) * net.row))


def test_an_op_of_somebody_else_that_is_tagged_keeps_its_input():
    expect_same_buffers(lambda: {"a": torch.arange(100.0), "y": torch.zeros(100)},
                        lambda net: net.y.copy_(torch.ops.duet_pointwise_test.plus_one(torch.sin(net.a)) * 2))
