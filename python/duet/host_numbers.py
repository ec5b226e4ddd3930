"""Where the code of a step finds numbers that are no tensors."""

import array
import collections
import collections.abc
import datetime
import decimal
import enum
import fractions
import functools
import gc
import logging
import sys
import types

import numpy
import torch

from . import _duet
from .code_names import imported, is_users, names_of
from .generators import KINDS

CONSTANTS = (enum.Enum, bytes, complex, numpy.generic, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator,
             numpy.ndarray, bytearray, array.array, range, slice, set, frozenset, collections.deque, decimal.Decimal, fractions.Fraction,
             datetime.timedelta, datetime.date, datetime.time)  # fmt: skip
MOST = 64  # items of a list, tuple or dict; more are data
_PLAIN = (int, float, str, type(None), *CONSTANTS)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_OF_AUTOGRAD = ("forward", "backward", "setup_context", "vjp", "jvp", "vmap")  # which a Function's apply() calls
_EXPLICIT = ("__init__", "__new__", "__repr__", "__str__", "__del__", "__getstate__", "__setstate__", "__reduce__")
_READING = ("__getattr__", "__getattribute__")  # which configs of libraries have
_AROUND = {collections.abc.Mapping, collections.UserList}
_WRAPPED = ((classmethod, "__func__"), (staticmethod, "__func__"), (property, "fget"), (functools.cached_property, "func"))
_HOOKS_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OF_EACH_MODULE = vars(torch.nn.Module()).keys()
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of classes, not of functions
_LIMIT = 8192  # places; they are looked at before every step


def _is(value, kinds):
    """isinstance() asks the object, which may run code of its own."""
    return issubclass(type(value), kinds)


_mro_of, _dict_of_class = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__


def _classes(value):
    """Of a class its metaclasses, too."""
    return (*(_mro_of(value) if _is(value, type) else ()), *_mro_of(type(value)))


def _is_users_class(cls):
    return is_users(_dict_of_class(cls).get("__module__"))


def _own_dict(value):
    try:
        own = object.__getattribute__(value, "__dict__")
    except Exception:
        return None
    return own if type(own) is dict else None


def _matching(parts, names):
    """Those of the names that may be computed ones."""
    first, last = (tuple(part for part in parts if part[at] == "_" != part) for at in (-1, 0))
    return {name for name in names if type(name) is str and (name.startswith(first) or name.endswith(last))} if first or last else set()


@functools.cache
def _late_of(cls):
    """The names that the class's own code gives to getattr() and hasattr()."""
    return {name for member in _dict_of_class(cls).values() if type(member) is types.FunctionType for name in names_of(member.__code__).late}


def _attributes(value, names, parts=(), late=frozenset()):
    """Of these names the attributes of an object, where they are and by their names: its own, those in slots, those of its
    classes; of a class or a module of the user's likewise. None: it has none."""
    if _is(value, (torch.Tensor, logging.Logger)) or type(value).__module__ == "duet.lightning_logs":
        return None
    own = _own_dict(value)
    if type(value) is types.FunctionType:
        return [(own, name, own[name]) for name in sorted(names & own.keys())] or None
    if _is(value, types.ModuleType) and not is_users((own or {}).get("__name__")):
        return None
    classes = {cls: _dict_of_class(cls) for cls in _classes(value) if _is_users_class(cls)}
    if "__match_args__" in names:
        by_position = [part for inside in classes.values() if type(part := inside.get("__match_args__")) is tuple]
        names = names.union(name for part in by_position for name in part if type(name) is str)
    names = names | _matching(parts, {*(own or ()), *(name for inside in classes.values() for name in inside)})
    if _is(value, torch.nn.Module):  # there are many
        late = late & set().union(*map(_late_of, classes))
    found, shared = [], set()
    for cls, inside in classes.items():
        for name in names & inside.keys():
            item = inside[name]
            if type(item) is types.MemberDescriptorType and not _is(value, type):
                found.append((value, item, _slot(value, item)))
            elif not hasattr(type(item), "__get__") or _is_users_class(type(item)):  # no method, no property
                shared.add(name)
                found.append((cls, name, item))
    found += [(cls, name, None) for cls, inside in classes.items() for name in shared - inside.keys()]
    if own is not None:
        found += [(own, name, own.get(name)) for name in (names & (own.keys() | shared)) | late]  # others than its own may come
    return sorted(found, key=lambda place: str(place[1])) if found or own is not None or _has_own_code(value) else None


def _is_librarys(value):
    """An object whose class is not of the user, of torch or of C."""
    if _own_dict(value) is None or _is(value, (type, types.ModuleType, *_FUNCTIONS)):
        return False
    return not any(_is_users_class(cls) or _is_of_torch(cls) for cls in _mro_of(type(value))[:-1])


def _reads_as_library(value):
    """Whether code of a library, that of a config or of a dict around another, says where what is read from it lies."""
    if not 0 < len(_own_dict(value) or ()) <= MOST or _is(value, (type, types.ModuleType)):
        return False
    kinds = _mro_of(type(value))[:-1]
    if any(_is_of_torch(cls) or cls.__module__.startswith("duet.") for cls in kinds):
        return False
    reading = [_dict_of_class(cls).get(name) for cls in kinds if not _is_users_class(cls) for name in _READING]
    return not _AROUND.isdisjoint(kinds) or any(type(method) is types.FunctionType for method in reading)


def _has_own_code(value):
    """A class whose methods are called on it itself."""
    return _is_of_autograd(value) or (_is(value, type) and _is_users_class(type(value)))


def _is_of_autograd(value):
    """A class of functions with a backward of their own."""
    return _is(value, type) and issubclass(value, torch.autograd.Function)


def _slot(value, descriptor):
    try:
        return descriptor.__get__(value)
    except AttributeError:
        return None


def _held(value):
    """The objects in it that have no place there that could be looked at."""
    if type(value) is types.MappingProxyType:
        return gc.get_referents(value)
    kind = next((kind for kind in (set, frozenset, collections.deque) if _is(value, kind)), None)
    items = kind.__iter__(value) if kind and kind.__len__(value) <= MOST else ()
    return [item for item in items if not _is(item, (*_PLAIN, torch.Tensor))]


def _is_plain(value):
    """A number, a text or a constant."""
    return _is(value, _PLAIN) and not _held(value)


def _items(value):
    """The items of a list, tuple or dict with their places, of one with many none; None for anything else."""
    for kind in (dict, list, tuple):
        if _is(value, kind):
            few = kind.__len__(value) <= MOST
            return [] if not few else list(dict.items(value) if kind is dict else enumerate(kind.__iter__(value)))
    return None


def _is_list_of_numbers(value, deepest=4):
    """Not empty, and of nothing else."""
    items = _items(value) if deepest > 0 and _is(value, (list, tuple)) else ()
    return bool(items) and all(_is_plain(v) or _is_list_of_numbers(v, deepest - 1) for _, v in items)


def _is_definition(key, value):
    """A function or class under its own name."""
    return type(value) in (types.FunctionType, types.BuiltinFunctionType, type) and value.__name__ == key


def _is_of_torch(thing):
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == "torch"


class _Search:
    def __init__(self, functions, texts):
        self.found, self.names, self.keys, self.known, self.open = [], set(texts), set(), set(), list(functions)
        self.parts, self.late, self.computes = set(), set(), False  # of the names that code of the user's computes
        self.texts = set()  # that it finds
        self.modules, self.functions = [], []  # that the code may call, of what is in these objects
        self.generators = []  # and those that it may draw from
        self.whole = set()  # objects of libraries, by id: all of their attributes
        self.reads_progress = False  # of a trainer: a number that is no attribute
        while self.open:
            self.function(self.open.pop())

    def function(self, function):
        """Notes what the function's code finds in its closure, its defaults and its module, functions to go on with."""
        if type(function) is functools.partial:
            self.found += [(None, None, part) for part in (function.func, function.args, function.keywords)]
            return self.open.append(function.func)
        owner = None
        if type(function) is types.MethodType:
            owner, function = function.__self__, function.__func__
        if type(function) is not types.FunctionType:
            owner, function = function, getattr(type(function), "__call__", None)
        if type(function) is not types.FunctionType:
            return
        self.found.append((None, None, owner))
        if _is_of_torch(function):
            return self.known.add(function)
        if function in self.known:
            return
        self.known.add(function)
        looked_up = names_of(function.__code__)
        without = {"param_groups"} if _is(owner, torch.optim.Optimizer) else set()  # whose numbers are keys of their own
        self.names |= looked_up.attributes - without | looked_up.keys
        self.keys |= looked_up.keys
        if looked_up.computes and is_users(function.__module__):
            self.computes = True
            self.parts |= looked_up.parts
            self.late |= looked_up.late
        self.found += [(None, None, value) for value in function.__defaults__ or ()]
        self.found += [(function.__kwdefaults__, name, value) for name, value in (function.__kwdefaults__ or {}).items()]
        places = [(cell, None) for cell in function.__closure__ or ()]
        places += [(function.__globals__, name) for name in sorted(looked_up.of_module & function.__globals__.keys())]
        places += [(sys.modules, name) for name in imported(function)]
        for owner, key in places:
            try:
                value = owner.cell_contents if key is None else owner.get(key)
            except ValueError:
                continue  # a cell that is not filled yet
            self.found.append((owner, key, value))
            if type(value) in _FUNCTIONS:
                self.open.append(value)

    def methods_of(self, value):
        """Those that the names of all these functions are in the object's classes, properties, and what has no name."""
        found, own = [], _own_dict(value) or ()
        computed = _matching(self.parts, {name for cls in _classes(value) for name in _dict_of_class(cls)})
        for cls in [cls for cls in _classes(value) if not _is_of_torch(cls)]:
            module = _dict_of_class(cls).get("__module__")
            is_lightnings = type(module) is str and module.partition(".")[0] in _LIGHTNING
            for name, member in _dict_of_class(cls).items():
                if is_lightnings and type(member) is not property:
                    continue  # they log, move and count
                method = next((getattr(member, part) for kind, part in _WRAPPED if type(member) is kind), member)
                is_implicit = name.startswith("__") and name not in _EXPLICIT and _is_users_class(cls)
                is_implicit = is_implicit or (name in _OF_AUTOGRAD and _is_of_autograd(cls))
                if type(method) is types.FunctionType and (name in self.names or name in computed or is_implicit) and name not in own:
                    found.append(types.MethodType(method, value))
        return found

    def places(self):
        """With what is in the objects among it: all items of lists, tuples and dicts, attributes that the code names."""
        places, known, found = {}, set(), self.found
        while found and len(places) <= _LIMIT and len(known) <= _LIMIT:
            owner, key, value = found.pop()
            is_whole = id(value) in self.whole or _reads_as_library(value)
            names = self.names | (_own_dict(value) or {}).keys() if is_whole else self.names
            items, attributes = _items(value), _attributes(value, names, self.parts, self.late)
            if is_whole and len(self.whole) > MOST and _is(value, dict):  # of a large one what the code names
                items = [item for item in items if item[0] in names]
            if is_whole and len(self.whole) < 4 * MOST:
                inside = [*(part[-1] for part in attributes or ()), *(item for _, item in items or ())]
                self.whole.update(id(part) for part in inside if type(part) in (dict, list, tuple) or _is_librarys(part))
            self.texts.update(text for text in (value, *(item for _, item in items or ())) if type(text) is str)
            held = _held(value)
            is_number = _is_plain(value) or (attributes is None and _is_list_of_numbers(value))
            is_container = not is_number and (items is not None or attributes is not None or bool(held))
            if owner is None and items:
                owner, key = (value,), 0
            counts = not is_container or type(value) in _FUNCTIONS or bool(held)
            inside, counts = ([], counts) if items is None or is_number or id(value) in known else self.inside(value, items)
            is_tensor, is_name = _is(value, torch.Tensor), type(value) is str and self.computes and value.isidentifier()
            if owner is not None and (is_number or is_container or is_tensor or (callable(value) and not _is_definition(key, value))):
                may_be_other = is_container or is_name or not (is_number or is_tensor or not type(value).__flags__ & _HEAP_TYPE)
                places.setdefault((id(owner), key), (owner, key, value if may_be_other else None, counts))
            found += [(None, None, item) for _, item in items or () if _is(item, enum.Enum)]
            found += [(None, None, item) for item in held]
            if (is_number and not _is(value, enum.Enum)) or id(value) in known:
                continue
            known.add(id(value))
            self.note(value)
            found += [(value, *item) for item in inside]
            if attributes is not None:
                found += attributes
                self.functions += [] if is_whole and _is_librarys(value) else self.methods_of(value)
        self.is_complete = not found and not self.reads_progress
        return list(places.values())

    def inside(self, value, items):
        """What is in a list, tuple or dict, and whether its own numbers count with it."""
        if _is(value, dict) and dict.__len__(value) > MOST:
            return [(name, dict.get(value, name)) for name in sorted(self.names) if dict.__contains__(value, name)], False
        return [item for item in items if not _is_plain(item[1]) and not _is(item[1], torch.Tensor)], True

    def note(self, value):
        if _is(value, torch.nn.Module):
            self.modules.append(value)
        elif _is(value, _duet.BaseTrainer):
            self.reads_progress = self.reads_progress or "progress" in self.names
        elif type(value) in KINDS:
            self.generators.append(value)
        elif type(value) is functools.partial or (type(value) in _FUNCTIONS and is_users(getattr(value, "__module__", None))):
            self.functions.append(value)
        elif type(value) is types.BuiltinFunctionType and _is_of_autograd(value.__self__):
            self.found.append((None, None, value.__self__))  # swish = Swish.apply
        elif type(value) is torch.library.CustomOpDef:
            functions = (getattr(value, name, None) for name in ("_backward_fn", "_setup_context_fn"))
            self.functions += [function for function in functions if function]


def own_code(model):
    """The model's modules, and the hooks of these, of their tensors, and of all modules."""
    modules = list(model.modules())
    attributes = [vars(module) for module in modules]
    tensors = [tensor for own in attributes for kind in ("_parameters", "_buffers") for tensor in own.get(kind, {}).values()]
    hooks = [own.get(name) for own in attributes for name in _HOOKS_OF_MODULES]
    hooks += [getattr(tensor, name) for tensor in tensors if tensor is not None for name in _HOOKS_OF_TENSORS]
    hooks += [getattr(torch.nn.modules.module, "_global" + name) for name in _HOOKS_OF_MODULES]
    return modules + [hook for some in hooks if some for hook in some.values()]


def watched(model, functions):
    """own_code(model); the modules that this code and these functions may call; the places that it refers to: [(where, key,
    container or None, whether its value counts)], cells of closures, globals, items, and attributes that it names of
    objects in these; the generators of Python and NumPy among it; whether these are all places; and the keys that the code
    names. A container is there to tell whether another one has taken its place."""
    own, modules = own_code(model), list(model.modules())
    hooks = own[len(modules) :]
    modules += (module for hook in hooks if _is(hook, torch.nn.Module) for module in hook.modules())
    functions, texts = [*functions, *hooks], set()
    while True:
        search = _Search([*functions, *(module.forward for module in modules if not _is_of_torch(type(module)))], texts)
        of_torch, names = [vars(module) for module in modules if _is_of_torch(type(module))], search.names - OF_EACH_MODULE
        search.found += [(own, name, own[name]) for own in of_torch for name in sorted(names & own.keys()) if not _is_list_of_numbers(own[name])]
        places = search.places()
        known = {id(module) for module in modules}
        called = {id(module): module for found in search.modules for module in found.modules() if id(module) not in known}
        opened = {id(_code_of(function)) for function in (*search.known, *functions)}
        further = [*search.functions, *(method for module in modules for method in search.methods_of(module))]
        unopened = {id(_code_of(function)): function for function in further if id(_code_of(function)) not in opened}
        new_texts = search.texts - texts if search.computes else set()
        if not called and not unopened and not new_texts:
            return own, modules, places, search.generators, search.is_complete, search.keys
        texts |= new_texts
        modules += called.values()
        functions += unopened.values()


def _code_of(function):
    return function.__func__ if type(function) is types.MethodType else function
