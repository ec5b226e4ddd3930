#!/usr/bin/env python3
"""Every relative link of a page leads to a file, and its anchor to a heading there; every page of docs/ is in
docs/index.md. What scripts/docs makes (docs/reference, docs/api, docs/python_api) is known by its index alone.

usage: check_links.py [ROOT]
"""

import pathlib
import re
import sys

MADE = ("docs/reference/", "docs/api/", "docs/python_api/")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text):
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`", text)


def anchors_of(text):
    """As GitHub and the site make them of headings."""
    found = set()
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while anchor + (f"-{number}" if number else "") in found:
            number += 1
        found.add(anchor + (f"-{number}" if number else ""))
    return found


def pages_of(root):
    return [path for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]]


def problem_of(root, page, link):
    """Why the link is wrong; empty if it is not."""
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page.resolve()
    if not path.is_relative_to(root):
        return "leaves the repository"
    name = path.relative_to(root).as_posix()
    if any(name.startswith(made) for made in MADE):
        return "" if name.endswith("/index.md") and not anchor else "names a page that only the site has; link to its index"
    if not path.exists():
        return "leads nowhere"
    if anchor and path.suffix == ".md" and anchor not in anchors_of(path.read_text(encoding="utf-8")):
        return "names a heading that is not there"
    return ""


def problems(root):
    listed = set()
    for page in sorted(pages_of(root)):
        for groups in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
            link = groups[0] or groups[1]
            if re.match(r"[a-z]+:", link):
                continue
            if problem := problem_of(root, page, link):
                yield f"{page.relative_to(root)}: [{link}] {problem}"
            if page == root / "docs" / "index.md":
                listed.add((page.parent / link.partition("#")[0]).resolve())
    for page in sorted((root / "docs").rglob("*.md")):
        if page not in listed and page != root / "docs" / "index.md":
            yield f"docs/index.md: {page.relative_to(root)} is not listed"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = list(problems(root))
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
