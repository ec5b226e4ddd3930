#!/usr/bin/env python3
"""Checks how long functions are and how many parameters they take. A scanner of braces, no compiler: it knows the style of
this house, not all of C++.

usage: check_functions.py [--root FOLDER] [--report]        --report: every function over 40 lines
"""

import argparse
import pathlib
import re
import sys

from tree import LIBRARY, PROGRAMS, ROOT, sources

MAX_LINES = 60
LONG = 40
MAX_PARAMETERS = 4  # in the library and the program
# Functions with more than that: signatures of ATen, of operators and of c10d, inner loops of kernels, and some to be mended. It may only fall.
STILL_TOO_MANY = 17
# Lists of cases, one after the other.
TABLES = re.compile(r"void add_\w+_cases\(")

STRING = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
TYPE_SCOPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|extern|class|struct|union|enum)\b", re.DOTALL)
TEST_MACRO = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|BENCHMARK\w*)\b")
# Where a constructor's list of members stands before the brace, that brace belongs to a member, not to the body.
MEMBER_BRACE = re.compile(r"\)\s*:[^{]*[\w>]\s*$|\)\s*:.*[})],\s*[\w:<>]+\s*$", re.DOTALL)


def blanked(text):
    """`text` without strings, comments and directives, its lines where they were."""

    def blank(match):
        lines = "\n" * match[0].count("\n")
        return ('""' if match[0][0] in "\"'R" else "") + lines

    return PREPROCESSOR.sub(lambda match: "\n" * match[0].count("\n"), STRING.sub(blank, text))


def without_template(header):
    if not header.startswith("template"):
        return header
    depth = 0
    for at, char in enumerate(header):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == ">" and depth == 0:
            return without_template(header[at + 1:].strip())
    return header


def parameters_of(header):
    """The texts between the commas of the parameter list; nothing for a test's macro."""
    header = re.sub(r"\boperator\s*\(\s*\)", "operator_call", without_template(header))
    header = re.sub(r"\b(?:decltype|alignas|__attribute__)\s*\(+[^()]*\)+", "", header)
    if TEST_MACRO.match(header) or "(" not in header:
        return []
    found, depth, word = [], 0, ""
    for char in header[header.index("(") + 1:]:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            if depth == 0:
                break
            depth -= 1
        if char == "," and depth == 0:
            found.append(word)
            word = ""
        else:
            word += char
    return [part for part in [*found, word] if part.strip() not in ("", "void")]


def functions_of(text):
    """Yields (name and parameters, first line, number of lines, number of parameters) of each function defined."""
    text = blanked(text)
    scopes, header, parens, line, first_line = [], "", 0, 1, None
    for char in text:
        line += char == "\n"
        inside = bool(scopes) and scopes[-1] is not None
        if char == "{":
            if inside or parens > 0 or MEMBER_BRACE.search(header) or re.search(r"[=,(]\s*$|\breturn\s*$", header):
                scopes.append(("nested",))
                continue
            head = header.strip()
            head = re.sub(r"^(?:(?:public|private|protected)\s*:\s*)+", "", head)
            is_type = TYPE_SCOPE.match(head) and "(" not in without_template(head)
            if is_type or head.startswith(("namespace", "extern")):
                scopes.append(None)
            elif "(" in head:
                scopes.append(("function", head, first_line))
            else:
                scopes.append(("nested",))
                continue
            header, first_line = "", None
        elif char == "}":
            scope = scopes.pop() if scopes else None
            if scope is not None and scope[0] == "function":
                _, head, first = scope
                # What overrides a function of a library takes what that takes.
                yield head, first, line - first + 1, 0 if head.endswith("override") else len(parameters_of(head))
            if scope is None or scope[0] == "function":
                header, first_line, parens = "", None, 0
            elif not scopes or scopes[-1] is None:
                header += "{}"
        elif not inside:
            parens += {"(": 1, ")": -1}.get(char, 0)
            if char == ";" and parens <= 0:
                header, first_line, parens = "", None, 0
            elif char == ":" and re.search(r"\b(public|private|protected)\s*$", header):
                header, first_line = "", None
            else:
                if first_line is None and not char.isspace():
                    first_line = line
                header += char


def every_function(root):
    for path in sources(root, [*LIBRARY, *PROGRAMS]):
        name = path.relative_to(root).as_posix()
        for head, first, lines, parameters in functions_of(path.read_text(encoding="utf-8")):
            short = " ".join(re.split(r"\)\s*:", head)[0].split())
            is_table = name.startswith("tests/") and TABLES.match(short)
            counted = 0 if name.startswith(("tests/", "benchmarks/", "examples/")) else parameters
            yield f"{name}:{first}: {short[:90]}", 0 if is_table else lines, counted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    functions = list(every_function(arguments.root.resolve()))
    faults = [f"{where}: {lines} lines, at most {MAX_LINES}" for where, lines, _ in functions if lines > MAX_LINES]
    crowded = [f"{where}: {count} parameters, at most {MAX_PARAMETERS}" for where, _, count in functions if count > MAX_PARAMETERS]
    if len(crowded) > STILL_TOO_MANY:
        faults += [*crowded, f"{len(crowded)} functions take too many parameters, at most {STILL_TOO_MANY} may"]
    elif len(crowded) < STILL_TOO_MANY:
        faults.append(f"check_functions.py: only {len(crowded)} functions take too many parameters; lower STILL_TOO_MANY")
    if arguments.report:
        print("\n".join(f"{where}: {lines} lines" for where, lines, _ in functions if lines > LONG))
    over = sum(lines > LONG for _, lines, _ in functions)
    print("\n".join([*faults, f"{len(functions)} functions, {over} of them over {LONG} lines"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
