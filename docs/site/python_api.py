"""The page about the Python package: each of its names, as the sources and the stubs describe it."""

import ast
import inspect

HEAD = """# The Python package

`import duet`. [Use duet from Python](../python.md) says how its parts work together. `help(duet.AdamW)` prints what
stands here.
"""


def exported(package):
    """{file: names} of what duet/__init__.py takes from the files beside it."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    return {package / f"{node.module}.py": [name.name for name in node.names] for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and not node.module.startswith("_")}


def definitions(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]


def fenced(kind, text):
    return ["", f"```{kind}", text, "```"]


def signature(node):
    """The head of a definition, without decorators, body and colon."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if "property" in decorators:
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    bare = type(node)(**{**{field: getattr(node, field) for field in node._fields}, "decorator_list": [],
                         "body": [ast.Pass()]})
    return ast.unparse(ast.fix_missing_locations(bare)).rpartition(":\n")[0]


def described(node, indent=""):
    doc = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
    comment = "".join(f"\n{indent}    # {line}".rstrip() for line in doc.splitlines())
    return indent + signature(node) + comment


def section(node):
    lines = ["", f"## {node.name}"]
    doc = ast.get_docstring(node)
    if isinstance(node, ast.FunctionDef):
        return [*lines, *fenced("python", signature(node)), *(fenced("text", doc) if doc else [])]
    members = [described(member) for member in node.body
               if isinstance(member, ast.FunctionDef)
               and (not member.name.startswith("_") or member.name == "__call__")]
    return [*lines, *fenced("python", signature(node)), *(fenced("text", doc) if doc else []),
            *(fenced("python", "\n".join(members)) if members else [])]


def write_page(root, path):
    package = root / "python" / "duet"
    lines = [HEAD.rstrip()]
    for file, names in exported(package).items():
        for node in definitions(file):
            if node.name in names:
                lines += section(node)
    for node in definitions(package / "_duet.pyi"):
        lines += section(node)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
