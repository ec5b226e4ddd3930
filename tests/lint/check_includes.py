#!/usr/bin/env python3
"""Checks the house: who may include whom, how includes are written, what is public, how long files are.

usage: check_includes.py [--root FOLDER] [--fix]        exit status 1 and one line per fault if there is any
--fix: writes includes of ours as the rule has them, instead of naming those that are written otherwise
"""

import argparse
import functools
import os.path
import pathlib
import re
import sys

from tree import LIBRARY, PROGRAMS, ROOT, includes, sources

# Folder of the library -> folders it may include besides itself. The programs may include all.
BELOW_CORE = ("base", "io", "data", "metrics", "checkpoint", "distributed", "optim")
MAY_INCLUDE = {
    "base": (),
    "io": ("base",),
    "data": ("base", "io"),
    "metrics": ("base",),
    "checkpoint": ("base", "io"),
    "distributed": ("base",),
    "optim": ("base", "distributed"),
    "core": BELOW_CORE,
    "eager": (*BELOW_CORE, "core"),
    "graph": (*BELOW_CORE, "core"),
    "hooks": (*BELOW_CORE, "core"),
}
# (including file, included file): what breaks the rule today. The list may only shrink.
NOT_YET: set[tuple[str, str]] = set()
# Public, though duet.h leaves them out: they cost what torch/torch.h costs.
OPT_IN = ("data/torch_data_source.h",)
MAX_PUBLIC_HEADERS = 48
MAX_LINES = 400

CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b")


def target_of(root, path, include):
    """The file of ours that a quoted include names, as the compiler finds it: beside the includer, else below the root."""
    beside = os.path.normpath((path.parent / include).relative_to(root).as_posix())
    return next((name for name in (beside, include) if (root / name).is_file()), None)


def quoted(root, path):
    """Yields (line number, text, file from the root or None) of each quoted include."""
    for number, bracket, include in includes(path):
        if bracket == '"':
            yield number, include, target_of(root, path, include)


@functools.cache
def public_headers(root):
    return [target for _, bracket, target in includes(root / "duet.h") if bracket == '"']


@functools.cache
def installed_headers(root):
    lists = root / "cli" / "CMakeLists.txt"
    of_program = re.findall(r"[\w/]+\.h\b", lists.read_text(encoding="utf-8")) if lists.exists() else []
    return {*public_headers(root), *OPT_IN, *(f"cli/{name}" for name in of_program)}


def spelling(root, name, target):
    """How the file `name` includes `target`: by the path from the root; an installed header by the path from itself, since it
    must not find a base/batch.h of the user's; an example likewise, since its folder is there to be copied."""
    if name not in installed_headers(root) and not name.startswith("examples/"):
        return target
    return os.path.relpath(target, os.path.dirname(name))


def check_spelling(root):
    for path in sources(root, [*LIBRARY, *PROGRAMS]):
        name = path.relative_to(root).as_posix()
        for number, text, target in quoted(root, path):
            if target is None:
                yield f'{name}:{number}: "{text}" is no file of ours; write <...> for headers of others'
            elif text != spelling(root, name, target):
                yield f'{name}:{number}: "{text}": write "{spelling(root, name, target)}"'


def fix_spelling(root):
    for path in sources(root, [*LIBRARY, *PROGRAMS]):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        fixed = text
        for _, include, target in quoted(root, path):
            if target is not None:
                fixed = fixed.replace(f'#include "{include}"', f'#include "{spelling(root, name, target)}"')
        if fixed != text:
            path.write_text(fixed, encoding="utf-8")


def check_directions(root):
    for path in sources(root, LIBRARY):
        name = path.relative_to(root).as_posix()
        folder = path.relative_to(root).parts[0]
        for number, _, target in quoted(root, path):
            if target == "duet.h":
                yield f"{name}:{number}: the library must not include its own umbrella"
            elif target and target.split("/")[0] not in (folder, *MAY_INCLUDE[folder]):
                if (name, target) not in NOT_YET:
                    allowed = ", ".join(MAY_INCLUDE[folder]) or "nothing"
                    yield f"{name}:{number}: {folder} must not include {target}; it may include {allowed}"


def check_public(root):
    public = public_headers(root)
    for name in sorted(set(public)):
        if public.count(name) > 1:
            yield f"duet.h: lists {name} {public.count(name)} times"
        if not (root / name).is_file():
            yield f"duet.h: there is no {name}"
        elif "/detail/" in name:
            yield f"duet.h: {name} is private, it lies in a detail/"
        else:
            for number, _, target in quoted(root, root / name):
                if target and target not in public and (name, target) not in NOT_YET:
                    yield f"{name}:{number}: a public header must not include {target}, which is not public"
    if len(public) > MAX_PUBLIC_HEADERS:
        yield f"duet.h: {len(public)} public headers, at most {MAX_PUBLIC_HEADERS}"


def check_exceptions(root):
    for name, target in sorted(NOT_YET):
        path = root / name
        if root == ROOT and not (path.is_file() and target in (found for _, _, found in quoted(root, path))):
            yield f"check_includes.py: {name} no longer includes {target}; take it from NOT_YET"


def check_headers(root):
    for path in sources(root, [*LIBRARY, *PROGRAMS], (".h",)):
        code = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("//")]
        if not code or code[0] != "#pragma once":
            yield f"{path.relative_to(root)}: must begin with #pragma once"


def check_conditionals(root):
    for path in sources(root, [*LIBRARY, "cli"]):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if CONDITIONAL.match(line):
                yield f"{path.relative_to(root)}:{number}: {line.strip()}: choose by file in CMake (x.cpp, no_x.cpp)"


def check_length(root):
    for path in sources(root, [*LIBRARY, *PROGRAMS], (".h", ".cpp", ".py")):
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > MAX_LINES:
            yield f"{path.relative_to(root)}: {length} lines, at most {MAX_LINES}"


CHECKS = (check_spelling, check_directions, check_public, check_exceptions, check_headers, check_conditionals, check_length)


def faults(root):
    return [fault for check in CHECKS for fault in check(root)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--fix", action="store_true")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.fix:
        fix_spelling(root)
    found = faults(root)
    print("\n".join(found) or "the sources keep their shape")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
