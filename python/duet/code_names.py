"""What code names: attributes, globals, keys, modules that it imports."""

import dis
import functools
import importlib.util
import re
import sys
import types

from .generators import LIBRARIES

_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_BY_NAME = ("getattr", "hasattr")
_FORMATS = re.compile(r"%[a-z]|\{[^}]*\}")
_OF_MODULE = {dis.opmap["LOAD_GLOBAL"]: int(sys.version_info >= (3, 11)), dis.opmap["LOAD_NAME"]: 0}  # bits below the name's


@functools.cache
def _is_library(name):
    module = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if name and module is None else None
    file = getattr(module, "__file__", None) or getattr(spec, "origin", None) or ""
    return name in LIBRARIES or "site-packages" in file or "dist-packages" in file


def is_users(module):
    """Whether a module is not a library's, by its name; what has none is."""
    return type(module) is not str or not _is_library(module.partition(".")[0])


class _Names:
    """What code may look up: names of attributes, of its module, keys; of names that it computes the parts, and those that it
    gives to getattr() and hasattr()."""

    def __init__(self, code):
        self.attributes, self.of_module, self.late = set(code.co_names), set(), set()
        self.keys = {constant for constant in code.co_consts if isinstance(constant, str)}
        self.computes = not self.attributes.isdisjoint(_BY_NAME)
        self.parts = {part for key in self.keys for part in _FORMATS.split(key) if part.isidentifier()} if self.computes else set()
        if "get_last_lr" in self.attributes:  # of torch, whose own code is not looked at
            self.attributes.add("_last_lr")
        if _MATCH_CLASS in code.co_code[::2]:  # case Config(weight=...), and by position
            self.attributes |= {"__match_args__", *(name for part in code.co_consts if type(part) is tuple for name in part if type(name) is str)}
        self.read(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inside = names_of(constant)
                for kind in ("attributes", "of_module", "late", "keys", "parts"):
                    getattr(self, kind).update(getattr(inside, kind))
                self.computes = self.computes or inside.computes

    def read(self, code):
        extended, by_name = 0, False
        for op, argument in zip(code.co_code[::2], code.co_code[1::2]):
            argument |= extended << 8
            extended = argument if op == dis.EXTENDED_ARG else 0
            if op in _OF_MODULE:
                name = code.co_names[argument >> _OF_MODULE[op]]
                self.of_module.add(name)
                by_name = by_name or name in _BY_NAME
            elif op == dis.opmap["LOAD_CONST"] and by_name and type(name := code.co_consts[argument]) is str and name.isidentifier():
                self.late.add(name)
            elif op == dis.opmap["CALL"]:
                by_name = False


names_of = functools.cache(_Names)


def imported(function):
    """Names of the modules that the function's code imports, there already or not, but for libraries."""
    package, codes, found = function.__globals__.get("__package__"), [function.__code__], set()
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        lines = list(dis.get_instructions(code)) if dis.opmap["IMPORT_NAME"] in code.co_code[::2] else []
        for level, _, line in zip(lines, lines[1:], lines[2:]):
            if line.opname == "IMPORT_NAME" and (package or not level.argval):
                found.add(importlib.util.resolve_name("." * level.argval + line.argval, package))
    return [name for name in sorted(found) if is_users(name)]
