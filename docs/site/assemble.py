"""Puts what the site is made of into one folder: the pages as they lie in the repository, so that their links hold, the
reference that the program prints, and pages about the headers and the Python package.

usage: assemble.py ROOT FOLDER PROGRAM
"""

import pathlib
import re
import shutil
import subprocess
import sys

import headers
import python_api

BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "duet.h")
LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def copy_pages(root, folder):
    for name in BESIDE:
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "docs", folder / "docs", ignore=shutil.ignore_patterns("site", "requirements.txt"))
    shutil.copytree(root / "examples", folder / "examples")


def write_reference(printed, folder):
    """A page for each heading of the first level."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = []
    for page in re.split(r"^(?=# )", printed, flags=re.MULTILINE)[0 if printed.startswith("# ") else 1:]:
        if not page.strip():
            continue
        title = page.splitlines()[0][2:]
        name = re.sub(r"\W+", "_", title.lower().removeprefix("types: ")) + ".md"
        (folder / name).write_text(page, encoding="utf-8")
        pages.append((title, name))
    index = ["# Reference of configs", "", "`duet help` prints the same.", ""]
    index += [f"- [{title}]({name})" for title, name in pages]
    index += ["", "```{toctree}", ":hidden:", *(name for _, name in pages), "```", ""]
    (folder / "index.md").write_text("\n".join(index), encoding="utf-8")


def add_navigation(index):
    """docs/index.md lists every page under headings; the navigation follows it. Sphinx refuses a page that is not in it."""
    text = index.read_text(encoding="utf-8")
    trees = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        pages = list(dict.fromkeys(LINK.findall(section)))
        if pages:
            trees += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]
    index.write_text(text + "\n".join(trees) + "\n", encoding="utf-8")


def main():
    root, folder, program = (pathlib.Path(argument) for argument in sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_pages(root, folder)
    printed = subprocess.run([program, "help", "--markdown"], check=True, capture_output=True, text=True).stdout
    write_reference(printed, folder / "docs" / "reference")
    headers.write_pages(root, folder / "docs" / "api")
    (folder / "docs" / "python_api").mkdir()
    python_api.write_page(root, folder / "docs" / "python_api" / "index.md")
    add_navigation(folder / "docs" / "index.md")


if __name__ == "__main__":
    main()
