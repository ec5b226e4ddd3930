"""States of random generators besides torch's default ones: Python's, NumPy's, and those of a loader's own."""

import base64
import functools
import json
import random
import sys
import types
import warnings

import numpy
import torch

HOST = (random._inst, numpy.random.mtrand._rand)  # what the functions of random and numpy.random draw from
_MANY = 10_000  # objects are looked at, at most
_FEW = 64  # a container of more holds data
LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "torchdata", "numpy", "duet"} - {"__main__"}


def own(loader):
    """Generators that a loader holds, or its samplers, datasets, transforms and functions, however deep."""
    found, parts = [], [loader]
    seen = {id(part): part for part in (torch.default_generator, *HOST, loader)}
    for part in parts:
        if type(part) in KINDS:
            found.append(part)
            continue
        for value in _held_by(part):
            if id(value) not in seen and len(seen) < _MANY:
                seen[id(value)] = value
                parts.append(value)
    return found


def _held_by(part):
    for kind in (list, tuple, dict):  # whose subclass may be a loader that draws when it is iterated over
        if isinstance(part, kind):
            few = kind.__len__(part) <= _FEW
            return () if not few else dict.values(part) if kind is dict else kind.__iter__(part)
    if isinstance(part, types.FunctionType):
        cells = [cell.cell_contents for cell in part.__closure__ or () if cell != types.CellType()]
        named = [part.__globals__.get(name) for name in part.__code__.co_names] if _is_users(part.__module__) else ()
        return (*cells, *named, *(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values())
    if isinstance(part, functools.partial):
        return (part.func, *part.args, *part.keywords.values())
    if isinstance(part, (type, types.ModuleType, torch.nn.Module, torch.Tensor)):
        return ()
    shared = [value for c in type(part).__mro__ if _is_users(c.__module__) for value in vars(c).values()]
    return (getattr(part, "__self__", None), getattr(part, "__func__", None), *getattr(part, "__dict__", {}).values(), *shared)


def _is_users(module):
    """Whether a module's name, or None, is not one of a library's."""
    return (module or "").partition(".")[0] not in LIBRARIES


def states(generators):
    """Their states as one tensor of bytes."""
    text = json.dumps([(_name(g), KINDS[type(g)][0](g)) for g in generators], default=numpy.ndarray.tolist)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def restore(generators, tensor, holder="the loader"):
    """Gives generators the states that others of their kinds and number had; other ones are left as they are."""
    saved = json.loads(tensor.numpy().tobytes())
    if [name for name, _ in saved] != [_name(generator) for generator in generators]:
        warnings.warn(f"found {len(generators)} random generators in {holder}, expected the {len(saved)} of the checkpoint: they are left as they are")
        return
    for generator, (_, state) in zip(generators, saved):
        KINDS[type(generator)][1](generator, state)


def _name(generator):
    return f"{type(generator).__module__}.{type(generator).__qualname__}"


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _set_numpy(generator, state):
    if generator.bit_generator.state["bit_generator"] == state["bit_generator"]:
        generator.bit_generator.state = state


def _set_torch(generator, text):
    generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))


KINDS = {
    torch.Generator: (lambda g: base64.b64encode(g.get_state().numpy()).decode(), _set_torch),
    numpy.random.Generator: (lambda g: g.bit_generator.state, _set_numpy),
    numpy.random.RandomState: (lambda g: g.get_state(legacy=False), lambda g, state: g.set_state(state)),
    random.Random: (random.Random.getstate, lambda g, state: g.setstate(_tuples(state))),
}
