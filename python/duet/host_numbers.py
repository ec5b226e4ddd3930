"""Where the code of a step finds numbers that are no tensors."""

import dis
import enum
import functools
import types

import numpy
import torch

CONSTANTS = (enum.Enum, bytes, complex, numpy.generic, torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (int, float, str, type(None), *CONSTANTS)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_LIMIT = 512  # looked at before every step


def _names(code):
    """What a function's code looks up: in its module; as attributes and keys."""
    globals_, inside = set(), {constant for constant in code.co_consts if isinstance(constant, str)}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            globals_.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            inside.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            further = _names(constant)
            globals_ |= further[0]
            inside |= further[1]
    return globals_, inside


def _is(value, kinds):
    """isinstance() asks the object, which may run code of its own."""
    return issubclass(type(value), kinds)


def _attributes(value):
    """The dict with an object's attributes, or a dict itself."""
    if _is(value, (torch.Tensor, type, types.ModuleType, types.FunctionType)):
        return None
    if type(value) is dict:
        return value
    try:
        inside = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return inside if type(inside) is dict else None


def _is_list_of_numbers(value, deepest=4):
    """Of a fixed length: one that is empty now, to be filled by the step, decides about nothing."""
    kind = list if type(value) is list else tuple
    if deepest == 0 or not _is(value, kind) or not 0 < kind.__len__(value) <= 16:
        return False
    return all(_is(v, _PLAIN) or _is_list_of_numbers(v, deepest - 1) for v in kind.__iter__(value))


def _is_of_torch(thing):
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == "torch"


class _Search:
    def __init__(self, functions):
        self.found, self.names, self.known, self.open = [], set(), set(), list(functions)
        self.modules, self.methods = [], []  # that the code may call, of objects among `found`
        while self.open:
            self.function(self.open.pop())

    def function(self, function):
        """Notes what the function's code finds in its closure, its defaults and its module, functions to go on with."""
        if type(function) is functools.partial:
            self.found += [(None, None, value) for value in (*function.args, *function.keywords.values())]
            return self.open.append(function.func)
        owner = None
        if type(function) is types.MethodType:
            owner, function = function.__self__, function.__func__
        if type(function) is not types.FunctionType:
            owner, function = function, getattr(type(function), "__call__", None)
        if type(function) is not types.FunctionType:
            return
        if _is_of_torch(function):
            return self.known.add(function)
        self.found.append((None, None, owner))
        if function in self.known:
            return
        self.known.add(function)
        globals_, inside = _names(function.__code__)
        self.names |= inside
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.found += [(None, None, value) for value in defaults]
        places = [(cell, None) for cell in function.__closure__ or ()]
        places += [(function.__globals__, name) for name in sorted(globals_ & function.__globals__.keys())]
        for owner, key in places:
            try:
                value = owner.cell_contents if key is None else owner[key]
            except ValueError:
                continue  # a cell that is not filled yet
            self.found.append((owner, key, value))
            if type(value) in _FUNCTIONS:
                self.open.append(value)

    def methods_of(self, value):
        """Those that the names of all these functions are in the object's classes."""
        classes = [c for c in type(value).__mro__ if not _is_of_torch(c)]
        found = {n: m for c in reversed(classes) for n, m in vars(c).items() if n in self.names and type(m) is types.FunctionType}
        return [types.MethodType(method, value) for method in found.values()]

    def places(self):
        """With what the names of all these functions are in the objects among it."""
        places, known, found, names = [], set(), self.found, sorted(self.names)
        while found and len(places) < _LIMIT:
            owner, key, value = found.pop()
            if _is(value, _PLAIN) or _is_list_of_numbers(value):
                places += [(owner, key, None)] if owner is not None else []
                continue
            if _is(value, torch.nn.Module):
                self.modules.append(value)
            inside = _attributes(value)
            if inside is None:
                continue
            if owner is not None:
                places.append((owner, key, value))
            if id(value) in known:
                continue
            known.add(id(value))
            found += [(inside, name, inside[name]) for name in names if name in inside]
            self.methods += self.methods_of(value)
            if inside is value:
                places += [(inside, name, None) for name in names if name not in inside]  # they may come
        return places[:_LIMIT]


def watched(model, functions):
    """The modules that the code of these may call, those of the model first; and the places that it refers to: [(cell,
    None, container or None) or (dict, key, container or None)], closures, globals, and attributes and items that it names
    of objects in these. A container is there to tell whether another one has taken its place."""
    modules, functions = list(model.modules()), list(functions)
    while True:
        search = _Search([*functions, *(module.forward for module in modules if not _is_of_torch(type(module)))])
        places = search.places()
        known = {id(module) for module in modules}
        called = {id(module): module for found in search.modules for module in found.modules() if id(module) not in known}
        further = [*search.methods, *(method for module in modules for method in search.methods_of(module))]
        methods = [method for method in further if method.__func__ not in search.known]
        if not called and not methods:
            return modules, places
        modules += called.values()
        functions += methods
