#!/usr/bin/env python3
"""Checks the shape of the sources: who may include whom, what headers look like, how long files are.

usage: check_includes.py [--root FOLDER]        exit status 1 and one line per fault if there is any
"""

import argparse
import pathlib
import re
import sys

# Folder of the library -> folders it may include. cli, tests, examples and benchmarks may include all.
MAY_INCLUDE = {
    "core": {"core"},
    "optim": {"core", "optim"},
    "eager": {"core", "optim", "eager"},
    "graph": {"core", "optim", "graph"},
    "hooks": {"core", "optim", "hooks"},
}
FOLDERS = [*MAY_INCLUDE, "cli"]
# Public headers that duet.h leaves out because they cost what torch/torch.h costs.
OPT_IN = {"core/data/torch_data_source.h"}
# Files of the library that may ask the preprocessor anything. The build picks the platform by file instead.
MAY_USE_CONDITIONALS: set[str] = set()
MAX_LINES = 400

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b")


def sources(root, folders, suffixes=(".h", ".cpp")):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def includes(path):
    """Yields (line number, bracket, included path)."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def check_directions(root):
    for path in sources(root, FOLDERS):
        name = path.relative_to(root)
        allowed = MAY_INCLUDE.get(name.parts[0])
        for number, bracket, target in includes(path):
            if bracket == '"':
                yield f'{name}:{number}: "{target}": write <duet/...> for headers of ours, <...> for others'
            elif target == "duet/duet.h" and allowed is not None:
                yield f"{name}:{number}: the library must not include its own umbrella"
            elif target.startswith("duet/") and allowed is not None and target.split("/")[1] not in allowed:
                yield f"{name}:{number}: {name.parts[0]} must not include {target}; it may include {sorted(allowed)}"


def declared_headers(root):
    """Public headers, as the folders' CMakeLists.txt name them in duet_headers(...)."""
    headers = set()
    for folder in MAY_INCLUDE:
        lists = root / folder / "CMakeLists.txt"
        text = lists.read_text() if lists.exists() else ""
        for call in re.findall(r"duet_headers\(([^)]*)\)", text):
            headers |= {f"{folder}/{word}" for word in call.split()}
    return headers


def check_headers(root):
    public = declared_headers(root)
    for name in sorted(public):
        if not (root / name).exists():
            yield f"{name}: named in duet_headers(), but there is no such file"
    for path in sources(root, FOLDERS, (".h",)):
        name = path.relative_to(root).as_posix()
        code = [line for line in path.read_text().splitlines() if line and not line.startswith("//")]
        if not code or code[0] != "#pragma once":
            yield f"{name}: must begin with #pragma once"
        if name in public:
            for number, _, target in includes(path):
                inner = target.removeprefix("duet/")
                if target.startswith("duet/") and inner not in public:
                    yield f"{name}:{number}: a public header must not include {inner}, which is not public"


def check_umbrella(root):
    listed = [target.removeprefix("duet/") for _, _, target in includes(root / "duet.h")]
    public = declared_headers(root)
    for name in sorted(set(listed)):
        if listed.count(name) > 1:
            yield f"duet.h: lists {name} {listed.count(name)} times"
        if name not in public:
            yield f"duet.h: lists {name}, which no duet_headers() names"
    for name in sorted(public - OPT_IN - set(listed)):
        yield f"duet.h: lacks the public header {name}"


def check_built(root):
    for path in sources(root, FOLDERS, (".cpp",)):
        lists = [p / "CMakeLists.txt" for p in path.parents if p != root and p.is_relative_to(root)]
        text = "".join(p.read_text() for p in [*lists, root / "CMakeLists.txt"] if p.exists())
        if not re.search(rf"(?<![\w.]){re.escape(path.name)}\b", text):
            yield f"{path.relative_to(root)}: no CMakeLists.txt names it"


def check_conditionals(root):
    for path in sources(root, FOLDERS):
        name = path.relative_to(root).as_posix()
        if name in MAY_USE_CONDITIONALS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if CONDITIONAL.match(line):
                yield f"{name}:{number}: {line.strip()}: choose by file in CMake (x.cpp, no_x.cpp)"


def check_length(root):
    for path in sources(root, [*FOLDERS, "tests", "examples", "benchmarks"], (".h", ".cpp", ".py")):
        length = len(path.read_text().splitlines())
        if length > MAX_LINES:
            yield f"{path.relative_to(root)}: {length} lines, at most {MAX_LINES}"


CHECKS = (check_directions, check_headers, check_umbrella, check_built, check_conditionals, check_length)


def faults(root):
    return [fault for check in CHECKS for fault in check(root)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    found = faults(parser.parse_args().root.resolve())
    print("\n".join(found) or "the sources keep their shape")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
