#!/usr/bin/env python3
"""Writes the C++ blocks of the docs as one source, since LibTorch's headers cost more than all of them, with a main()
that runs one of the programs among them: duet_docs_blocks PAGE#NUMBER ARGUMENTS...

usage: cpp_blocks.py FILE
"""

import pathlib
import re
import sys

import pages

HEADERS = ["<array>", "<cstring>", "<fstream>", "<iostream>", "<map>", "<string>", "<duet/duet.h>",
           "<duet/cli/registry.h>", "<duet/cli/run_cli.h>", "<torch/torch.h>"]


def split_includes(text):
    """The headers, and the rest."""
    found = re.findall(r"^#include (.*)$", text, re.MULTILINE)
    return [header.split("//")[0].strip() for header in found], re.sub(r"^#include .*\n", "", text, flags=re.MULTILINE)


def as_namespace(block, shared):
    """`shared`: hidden code of the page, which stands before the block's."""
    _, text = split_includes(block.text)
    if "inside" in block.notes:
        text = f"[[maybe_unused]] static void body({block.notes['inside']}) {{\n{text}}}\n"
    body = re.sub(r"\bint main\(", "[[maybe_unused]] static int run_main(", text)
    if "run_main(" in body and not re.search(r"\n  return [^\n]*\n}\s*$", body):
        body = body.rstrip()[:-1] + "  return 0;\n}\n"  # main() alone may end without
    name = re.sub(r"\W", "_", block.cpp_name)
    return f"// {block.cpp_name}\nnamespace {name} {{\n{shared}{body}" + call_of(block) + "}  // namespace\n"


def call_of(block):
    """A function that runs its main(), which may take arguments or not."""
    takes = re.search(r"\bint main\((\w?)", block.text)
    if not takes:
        return ""
    arguments = "count, words" if takes[1] else ""
    return f"int call([[maybe_unused]] int count, [[maybe_unused]] char** words) {{ return run_main({arguments}); }}\n"


def blocks_of(page):
    """A page that is marked wrongly is a failed test, and no broken build."""
    try:
        return pages.blocks_of(page)
    except ValueError as error:
        print(error)
        return []


def main():
    headers, parts, mains = list(HEADERS), [], []
    for page in pages.pages():
        shared = ""
        for block in blocks_of(page):
            if block.language != "cpp" or "skip" in block.notes:
                continue
            headers += [header for header in split_includes(block.text)[0] if header not in headers]
            if block.hidden:
                shared += split_includes(block.text)[1]
                continue
            parts.append(as_namespace(block, shared))
            if "int main(" in block.text:
                name = re.sub(r"\W", "_", block.cpp_name)
                mains.append(f'  if (name == "{block.cpp_name}") return {name}::call(argc - 1, argv + 1);\n')
    text = "".join(f"#include {header}\n" for header in headers) + "\n" + "\n".join(parts)
    text += '\nint main(int argc, char** argv) {\n  if (argc < 2) return 2;\n  const std::string name = argv[1];\n'
    text += "".join(mains) + '  std::cerr << "no such block: " << name << "\\n";\n  return 2;\n}\n'
    target = pathlib.Path(sys.argv[1])
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
