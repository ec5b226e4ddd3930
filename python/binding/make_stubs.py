#!/usr/bin/env python3
"""Writes duet/_duet.pyi, the types of the extension module, from the module itself.

usage: make_stubs.py [--check]    with a built duet on PYTHONPATH; --check: exit status 1 if the file is another
"""

import inspect
import pathlib
import re
import sys

from duet import _duet

FILE = pathlib.Path(__file__).parents[1] / "duet" / "_duet.pyi"
HEAD = """# Written by python/binding/make_stubs.py.
import collections.abc
import typing

import torch

__version__: str
built_for_torch: str
"""


def plain(text):
    text = text.replace("duet._duet.", "").replace("duet::python::", "")
    text = text.replace(" | typing.SupportsIndex", "")  # of the pybind11 of newer torches
    text = re.sub(r"\(?self: \w+", lambda found: found[0].split("self")[0] + "self", text)
    return re.sub(r"<[^>]*object at 0x[0-9a-f]+>", "...", text)


def docstring(doc, indent):
    text = "\n".join(line for line in (doc or "").splitlines()[1:]).strip()
    return f'{indent}"""{text}"""\n' if text else ""


def function(name, doc, indent=""):
    signature = plain((doc or f"{name}(*args, **kwargs)").splitlines()[0])
    if not signature.startswith(name + "("):
        signature = f"{name}(*args, **kwargs) -> typing.Any"
    body = docstring(doc, indent + "    ")
    return f"{indent}def {signature}:" + (f"\n{body}" if body else " ...\n")


def type_of(value):
    if isinstance(value, list):
        return f"list[{type_of(value[0]) if value else 'typing.Any'}]"
    return "typing.Any" if value is None else type(value).__name__


def options(name, cls):
    """A class whose keyword arguments are its attributes."""
    fields = cls._defaults
    text = f"class {name}:\n"
    text += '    """' + (cls.__doc__ or "").strip() + '"""\n'
    text += "".join(f"    {key}: {type_of(value)}\n" for key, value in fields.items())
    arguments = "".join(f", {key}: {type_of(value)} = ..." for key, value in fields.items())
    return text + f"    def __init__(self{', *' if fields else ''}{arguments}) -> None: ...\n"


def whole(name, cls):
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base.__module__ != "pybind11_builtins" and base is not object)
    text = f"class {name}({bases}):\n" if bases else f"class {name}:\n"
    text += f'    """{cls.__doc__.strip()}"""\n' if cls.__doc__ else ""
    members = ""
    for key, value in vars(cls).items():
        if isinstance(value, property):
            kind = plain(((value.fget.__doc__ or "-> typing.Any").splitlines()[0]).rpartition("-> ")[2])
            body = f'\n        """{value.__doc__}"""\n' if value.__doc__ and "->" not in value.__doc__ else " ...\n"
            members += f"    @property\n    def {key}(self) -> {kind}:{body}"
        elif inspect.isroutine(value) and (not key.startswith("_") or key in ("__init__", "__call__")):
            members += function(key, value.__doc__, "    ")
    return text + (members or "    ...\n")


def main():
    text = HEAD
    for name, value in vars(_duet).items():
        if name.startswith("_") or name == "built_for_torch":
            continue
        if inspect.isclass(value):
            text += "\n" + (options(name, value) if hasattr(value, "_defaults") else whole(name, value))
        elif callable(value):
            text += "\n" + function(name, value.__doc__)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    compile(text, str(FILE), "exec")
    if "--check" in sys.argv:
        sys.exit(f"{FILE} is outdated; call this script" if FILE.read_text(encoding="utf-8") != text else 0)
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
