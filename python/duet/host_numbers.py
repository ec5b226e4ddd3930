"""Where the code of a step finds numbers that are no tensors."""

import dis
import enum
import functools
import logging
import random
import types

import numpy
import torch

from .generators import is_users

CONSTANTS = (enum.Enum, bytes, complex, numpy.generic, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
             numpy.ndarray)  # fmt: skip
MOST = 64  # items of a list, tuple or dict; more are data
_PLAIN = (int, float, str, type(None), *CONSTANTS)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_DESCRIPTORS = (types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType, property, classmethod, staticmethod)
_GENERATORS = (random.Random, numpy.random.Generator, numpy.random.RandomState)
_IMPLICIT = ("__call__", "__getitem__", "__iter__")
_LIMIT = 8192  # places; they are looked at before every step


def _names(code):
    """What a function's code may look up: names of its module, attributes and keys."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
        elif isinstance(constant, (str, int)):
            names.add(constant)
    return names


def _reads_any_key(code):
    """Whether a key may be another one than its code names."""
    last = ""
    for instruction in dis.get_instructions(code):
        is_subscript = instruction.opname == "BINARY_SUBSCR" or (instruction.opname == "BINARY_OP" and instruction.argrepr == "[]")
        if instruction.opname in ("DICT_MERGE", "DICT_UPDATE") or (is_subscript and not last.startswith("LOAD_CONST")):
            return True
        last = instruction.opname
    return any(_reads_any_key(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


def _is(value, kinds):
    """isinstance() asks the object, which may run code of its own."""
    return issubclass(type(value), kinds)


def _own(value, name="__dict__"):
    try:
        return object.__getattribute__(value, name)
    except Exception:
        return None


def _attributes(value):
    """An object's attributes, where they are and by their names: its own, those in slots, those of its classes; of a class
    or a module of the user's likewise. None: it has none."""
    if _is(value, (torch.Tensor, types.FunctionType, logging.Logger)) or (_is(value, types.ModuleType) and not is_users(value.__name__)):
        return None
    members = [(cls, name, item) for cls in _classes(value) if is_users(cls.__module__) for name, item in vars(cls).items()]
    found = [member for member in members if type(member[2]) not in _DESCRIPTORS]
    if not _is(value, type):
        found += [(value, name, _own(value, name)) for _, name, item in members if type(item) is types.MemberDescriptorType]
    own = _own(value)
    if type(own) is dict:
        found += [(own, name, item) for name, item in list(own.items())]
    return found if found or type(own) is dict else None


def _classes(value):
    return (value if _is(value, type) else type(value)).__mro__


def _items(value):
    """The items of a list, tuple or dict with their places, of one with many none; None for anything else."""
    for kind in (dict, list, tuple):
        if _is(value, kind):
            few = kind.__len__(value) <= MOST
            return [] if not few else list(dict.items(value) if kind is dict else enumerate(kind.__iter__(value)))
    return None


def _is_list_of_numbers(value, deepest=4):
    """Of a fixed length: one that is empty now, to be filled by the step, decides about nothing."""
    items = _items(value) if deepest > 0 and _is(value, (list, tuple)) else ()
    return bool(items) and all(_is(v, _PLAIN) or _is_list_of_numbers(v, deepest - 1) for _, v in items)


def _is_definition(key, value):
    """A function or class under its own name."""
    return type(value) in (types.FunctionType, types.BuiltinFunctionType, type) and value.__name__ == key


def _is_of_torch(thing):
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == "torch"


class _Search:
    def __init__(self, functions):
        self.found, self.names, self.known, self.open = [], set(), set(), list(functions)
        self.modules, self.functions = [], []  # that the code may call, of what is in these objects
        self.generators = []  # and those that it may draw from
        while self.open:
            self.function(self.open.pop())
        self.reads_any_key = not self.names.isdisjoint(("items", "values")) or any(_reads_any_key(f.__code__) for f in self.known)

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
        names = _names(function.__code__)
        self.names |= names
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.found += [(None, None, value) for value in defaults]
        places = [(cell, None) for cell in function.__closure__ or ()]
        places += [(function.__globals__, name) for name in sorted(names & function.__globals__.keys())]
        for owner, key in places:
            try:
                value = owner.cell_contents if key is None else owner[key]
            except ValueError:
                continue  # a cell that is not filled yet
            self.found.append((owner, key, value))
            if type(value) in _FUNCTIONS:
                self.open.append(value)

    def methods_of(self, value):
        """Those that the names of all these functions are in the object's classes, properties, and what has no name."""
        found = {}
        for cls in reversed([cls for cls in _classes(value) if not _is_of_torch(cls)]):
            for name, member in vars(cls).items():
                is_wrapped = type(member) in (classmethod, staticmethod)
                method = member.fget if type(member) is property else member.__func__ if is_wrapped else member
                if type(method) is types.FunctionType and (name in self.names or name in _IMPLICIT):
                    found[name] = method
        return [types.MethodType(method, value) for method in found.values()]

    def places(self):
        """With what is in the objects among it: all items of lists, tuples and dicts, attributes that the code names."""
        places, known, found = {}, set(), self.found
        while found and len(places) <= _LIMIT:
            owner, key, value = found.pop()
            items, attributes = _items(value), _attributes(value)
            is_number = _is(value, _PLAIN) or _is_list_of_numbers(value)
            is_container = not is_number and (items is not None or attributes is not None)
            if owner is None and items:
                owner, key = (value,), 0
            inside, counts = ([], not is_container) if items is None or is_number or id(value) in known else self.inside(value, items)
            if owner is not None and (is_number or is_container or (callable(value) and not _is_definition(key, value))):
                places.setdefault((id(owner), key), (owner, key, value if is_container else None, counts))
            if is_number or id(value) in known:
                continue
            known.add(id(value))
            self.note(value)
            found += [(value, *item) for item in inside]
            if attributes is not None:
                found += [place for place in attributes if place[1] in self.names]
                self.functions += self.methods_of(value)
        return list(places.values())

    def inside(self, value, items):
        """What is in a list, tuple or dict, and whether its own numbers count with it. Of a dict what the code names, unless
        it may ask for anything."""
        if not _is(value, dict) or (self.reads_any_key and dict.__len__(value) <= MOST):
            return [item for item in items if not _is(item[1], _PLAIN)], bool(items) or _is(value, dict)  # a list may fill up
        names = self.names & dict.keys(value) if self.reads_any_key else self.names  # of which some may come
        return [(name, dict.get(value, name)) for name in sorted(names, key=str)], False

    def note(self, value):
        if _is(value, torch.nn.Module):
            self.modules.append(value)
        elif type(value) in _GENERATORS:
            self.generators.append(value)
        elif type(value) in _FUNCTIONS:
            self.functions.append(value)


def states(generators):
    """A number that is another one where a generator has been drawn from."""
    read = (lambda g: g.getstate(), lambda g: g.bit_generator.state, lambda g: g.get_state(legacy=False))
    return hash(repr([read[_GENERATORS.index(type(generator))](generator) for generator in generators]))


def watched(model, functions):
    """The modules that the code of these may call, those of the model first; the places that it refers to: [(where,
    key, container or None, whether its value counts)], cells of closures, globals, items, and attributes that it names of
    objects in these; the generators of Python and NumPy among it; and whether these are all places. A container is there
    to tell whether another one has taken its place."""
    modules, functions = list(model.modules()), list(functions)
    while True:
        search = _Search([*functions, *(module.forward for module in modules if not _is_of_torch(type(module)))])
        places = search.places()
        known = {id(module) for module in modules}
        called = {id(module): module for found in search.modules for module in found.modules() if id(module) not in known}
        opened = {id(_code_of(function)) for function in (*search.known, *functions)}
        further = [*search.functions, *(method for module in modules for method in search.methods_of(module))]
        unopened = {id(_code_of(function)): function for function in further if id(_code_of(function)) not in opened}
        if not called and not unopened:
            return modules, places, search.generators, len(places) <= _LIMIT
        modules += called.values()
        functions += unopened.values()


def _code_of(function):
    return getattr(function, "__func__", function)
