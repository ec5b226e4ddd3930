"""Where the code of a step finds numbers that are no tensors."""

import functools
import types

import torch

_PLAIN = (int, float, str, type(None))
_LIMIT = 512  # looked at before every step


def _names(code):
    """What a function's code may look up: names, attributes, keys."""
    names = set(code.co_names) | {constant for constant in code.co_consts if isinstance(constant, str)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _attributes(value):
    if isinstance(value, (torch.Tensor, type, types.ModuleType, types.FunctionType)):
        return None
    return value if isinstance(value, dict) else getattr(value, "__dict__", None)


def _is_list_of_numbers(value):
    """Of a fixed length: one that is empty now, to be filled by the step, decides about nothing."""
    return isinstance(value, (list, tuple)) and 0 < len(value) <= 16 and all(isinstance(v, _PLAIN) for v in value)


def _is_of_torch(thing):
    return (getattr(thing, "__module__", None) or "").split(".")[0] == "torch"


class _Search:
    def __init__(self, functions):
        self.found, self.names, self.known = [], set(), set()
        for function in functions:
            self.function(function)

    def function(self, function):
        """Notes what the function's code finds in its closure and its module, and so on for functions among that."""
        if isinstance(function, functools.partial):
            for value in (*function.args, *function.keywords.values()):
                self.found.append((None, None, value))
            return self.function(function.func)
        owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType):
            owner, function = function, getattr(type(function), "__call__", None)
        if not isinstance(function, types.FunctionType) or _is_of_torch(function):
            return
        self.found.append((None, None, owner))
        if function in self.known:
            return
        self.known.add(function)
        names = _names(function.__code__)
        self.names |= names
        places = [(cell, None) for cell in function.__closure__ or ()]
        places += [(function.__globals__, name) for name in names & function.__globals__.keys()]
        for owner, key in places:
            try:
                value = owner.cell_contents if key is None else owner[key]
            except ValueError:
                continue  # a cell that is not filled yet
            self.found.append((owner, key, value))
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self.function(value)

    def places(self):
        """With what the names of all these functions are in the objects among it."""
        places, known, found = [], set(), self.found
        while found and len(places) < _LIMIT:
            owner, key, value = found.pop()
            if isinstance(value, _PLAIN) or _is_list_of_numbers(value):
                places += [(owner, key, None)] if owner is not None else []
                continue
            inside = _attributes(value)
            if inside is None:
                continue
            if owner is not None:
                places.append((owner, key, value))
            if id(value) in known:
                continue
            known.add(id(value))
            found += [(inside, name, inside[name]) for name in self.names & inside.keys()]
            if inside is value:
                places += [(inside, name, None) for name in self.names - inside.keys()]  # they may come
        return places[:_LIMIT]


def places_of(functions, modules):
    """[(cell, None, container or None) or (dict, key, container or None)] that the code of these refers to: closures,
    globals, and attributes and items that it names of objects in these. A container is there to tell whether another
    one has taken its place."""
    return _Search([*functions, *(module.forward for module in modules if not _is_of_torch(type(module)))]).places()
