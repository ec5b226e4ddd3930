"""Pages about the public headers: what each says, and what it declares."""

import re

# Of the library's program, for a program of one's own.
PROGRAM = ("program: the `duet` program with types of your own (duet::cli)",
           [("cli/run_cli.h", "run_cli: every command, for a main() of your own"),
            ("cli/registry.h", "register_model and its like: a name for a type in configs"),
            ("cli/config/config.h", "ConfigNode: a part of a config"),
            ("cli/config/config_options.h", "read_options: a described struct from it")])
# The built-in models and example datasets, which are installed with it.
ZOO = re.compile(r"\bzoo/\w+\.h\b")
INCLUDE = re.compile(r'^#include "([^"]+)"\s*(?://\s*(.*))?$')


def table_of_contents(umbrella):
    """(section, [(header, what it holds)]) for each section of duet.h."""
    sections = []
    for line in umbrella.splitlines():
        match = INCLUDE.match(line)
        if match and sections:
            sections[-1][1].append((match[1], match[2] or ""))
        elif line.startswith("// ") and not line.startswith("// Everything"):
            sections.append((line[3:], []))
    return [section for section in sections if section[1]]


def blocks_of(text):
    """The top-level pieces of a header: each with the comment above it. Includes, forward declarations and what is not
    meant to be named (namespace detail, private members) are left out."""
    text = re.sub(r"^#(pragma|include).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\nnamespace detail \{.*?\n\}  // namespace detail\n", "\n", text, flags=re.DOTALL)
    text = re.sub(r"\n(?:inline )?namespace [\w:]+ \{\n|\n\}  // namespace [\w:]+\n?", "\n", text)
    text = re.sub(r"^namespace [\w:]+ \{\n", "", text, flags=re.MULTILINE)
    blocks = []
    for piece in re.split(r"\n\s*\n(?=\S)", text.strip()):
        piece = without_private(piece.strip("\n"))
        if piece and not is_only_declared_elsewhere(piece):
            blocks.append(piece)
    return joined(blocks)


def is_only_declared_elsewhere(piece):
    return all(re.fullmatch(r"(class|struct) \w+;|namespace [\w:]+ \{.*", line) for line in piece.splitlines())


def joined(pieces):
    """A class with empty lines in it is one block again."""
    blocks, depth = [], 0
    for piece in pieces:
        if depth > 0:
            blocks[-1] += "\n\n" + piece
        else:
            blocks.append(piece)
        code = re.sub(r"//.*", "", piece)
        depth += code.count("{") - code.count("}")
    return [without_private(block) for block in blocks]


def without_private(piece):
    return re.sub(r"\n private:\n.*?(?=\n \w+:\n|\n\};)", "", piece, flags=re.DOTALL)


def split_comment(block):
    """The comment that a block begins with, as text, and the rest."""
    lines = block.splitlines()
    comment = []
    while lines and lines[0].startswith("//"):
        comment.append(re.sub(r"^// ?", "", lines.pop(0)))
    return comment, "\n".join(lines)


def as_markdown(comment):
    """Indented parts of a comment are code."""
    out, in_code = [], False
    for line in comment:
        code = line.startswith("  ") or (in_code and not line.strip())
        if code != in_code:
            out += ["", "```text" if code else "```"] if code else ["```", ""]
            in_code = code
        out.append(line if code else re.sub(r"([<>*_])", r"\\\1", line))
    return "\n".join(out + (["```"] if in_code else []))


def page_of(header, meaning, text):
    out = [f"# {header}", "", f"`#include <duet/{header}>`" + (f": {meaning}" if meaning else ""), ""]
    for block in blocks_of(text):
        comment, code = split_comment(block)
        if comment:
            out += [as_markdown(comment), ""]
        if code.strip():
            out += ["```cpp", code, "```", ""]
    return "\n".join(out) + "\n"


def zoo(root):
    """A section of the headers of models and example datasets that are installed."""
    names = [f"cli/{name}" for name in ZOO.findall((root / "cli" / "CMakeLists.txt").read_text(encoding="utf-8"))]
    makers = {name: re.findall(r"\bmake_\w+(?=\()", (root / name).read_text(encoding="utf-8")) for name in names}
    return ("program: the built-in models and example datasets (duet::cli)",
            [(name, ", ".join(makers[name]) or "a dataset") for name in names])


def write_pages(root, folder):
    """A page for each header that duet.h names or that is installed with the program, and index.md over them."""
    folder.mkdir(parents=True, exist_ok=True)
    index = ["# The headers", "", "`#include <duet/duet.h>` brings all of them but the program's. What is in namespace `duet::detail`, and in",
             "folders called `detail`, may change at any time.", ""]
    pages = []
    for section, headers in [*table_of_contents((root / "duet.h").read_text(encoding="utf-8")), PROGRAM, zoo(root)]:
        index += [f"## {section}", ""]
        for header, meaning in headers:
            name = header.removesuffix(".h").replace("/", "_") + ".md"
            (folder / name).write_text(page_of(header, meaning, (root / header).read_text(encoding="utf-8")),
                                       encoding="utf-8")
            index.append(f"- [{header}]({name}): {meaning}" if meaning else f"- [{header}]({name})")
            pages.append(name)
        index.append("")
    index += ["```{toctree}", ":hidden:", *pages, "```", ""]
    (folder / "index.md").write_text("\n".join(index), encoding="utf-8")
