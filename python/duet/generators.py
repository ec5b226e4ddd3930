"""States of random generators besides torch's default ones: Python's, NumPy's, and those of a loader's own."""

import base64
import json
import random

import numpy
import torch

HOST = (random._inst, numpy.random.mtrand._rand)  # what the functions of random and numpy.random draw from


def own(loader):
    """Generators that the parts of a loader keep as attributes."""
    batches = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None), getattr(loader, "dataset", None))
    found = []
    for part in parts:
        for value in getattr(part, "__dict__", {}).values():
            if type(value) in _KINDS and value is not torch.default_generator and all(value is not known for known in found):
                found.append(value)
    return found


def states(generators):
    """Their states as one tensor of bytes."""
    text = json.dumps([(_name(g), _KINDS[type(g)][0](g)) for g in generators], default=numpy.ndarray.tolist)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def restore(generators, tensor):
    """Gives generators the states that others of their kinds and number had; other ones are left as they are."""
    saved = json.loads(bytes(tensor.tolist()))
    if [name for name, _ in saved] != [_name(generator) for generator in generators]:
        return
    for generator, (_, state) in zip(generators, saved):
        _KINDS[type(generator)][1](generator, state)


def _name(generator):
    return f"{type(generator).__module__}.{type(generator).__qualname__}"


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _set_numpy(generator, state):
    if generator.bit_generator.state["bit_generator"] == state["bit_generator"]:
        generator.bit_generator.state = state


def _set_torch(generator, text):
    generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))


_KINDS = {
    torch.Generator: (lambda g: base64.b64encode(bytes(g.get_state().tolist())).decode(), _set_torch),
    numpy.random.Generator: (lambda g: g.bit_generator.state, _set_numpy),
    numpy.random.RandomState: (lambda g: g.get_state(legacy=False), lambda g, state: g.set_state(state)),
    random.Random: (random.Random.getstate, lambda g, state: g.setstate(_tuples(state))),
}
