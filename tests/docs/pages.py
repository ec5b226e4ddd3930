"""The code blocks of README.md and docs/, and what the comments above them say about running them.

A comment that the reader does not see stands right above a block:

    <!-- test: skip needs a GPU -->         not run; the reason is printed
    <!-- test: needs lightning -->          run where Python has this module
    <!-- test: file own.yaml -->            written to the page's folder under this name; a config of it is tried too
    <!-- test: with trainer.max_steps=3 --> further words for each call of duet in the block
    <!-- test: fails 2 -->                  the exit code that it ends with
    <!-- test: prints accuracy -->          what its output must hold
    <!-- test: program mine -->             a C++ program; blocks below call it as build/mine
    <!-- test: by mine -->                  the program that tries this config, instead of duet
    <!-- test: installed -->               run by the test `consumer` alone, which has installed duet into $HOME/duet
    <!-- test: inside bool done -->         statements of C++, compiled as the body of a function with these parameters

Several may stand there. `<!-- test: hidden python` with lines of code up to `-->` is a block that only the test has. The
blocks of a page run in their order and share a folder.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ("sh", "yaml", "python", "cpp")  # languages whose blocks are run
SHOWN = ("text", "json", "csv", "cmake")  # files and output

FENCE = re.compile(r"^ *```(.*)$")
COMMENT = re.compile(r"<!-- test: (.*?) ?-->", re.DOTALL)
VERBS = ("skip", "needs", "file", "with", "fails", "prints", "program", "by", "inside", "installed")


@dataclasses.dataclass
class Block:
    page: str  # "docs/data.md"
    line: int
    language: str
    text: str
    notes: dict[str, str]
    hidden: bool = False
    number: int = 0  # among the blocks of its page

    @property
    def name(self):
        return f"{self.page}:{self.line}"

    @property
    def cpp_name(self):
        """Without the line: the generated source shall not change when a page's text does."""
        return f"{self.page}#{self.number}"


def pages():
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def hidden_block(page, line, comment):
    head, _, text = comment.partition("\n")
    return Block(page, line, head.removeprefix("hidden").strip(), text.rstrip("\n") + "\n", {}, hidden=True)


def note(page, line, notes, comment):
    for part in comment.splitlines():
        verb, _, value = part.strip().partition(" ")
        if verb not in VERBS:
            raise ValueError(f"{page}:{line}: the comment says '{verb}', expected one of {', '.join(VERBS)}")
        notes[verb] = value.strip()


def blocks_of(page):
    """Throws ValueError for a comment that no block follows, and for a block without a language."""
    blocks, notes, comment = [], {}, None
    lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if comment is None and line.strip().startswith("<!-- test:"):
            comment = (number, [])
        if comment is not None:
            comment[1].append(line)
            if "-->" not in line:
                continue
            text = COMMENT.search("\n".join(comment[1]))[1]
            if text.startswith("hidden"):
                blocks.append(hidden_block(page, comment[0], text))
            else:
                note(page, comment[0], notes, text)
            comment = None
            continue
        fence = FENCE.match(line)
        if fence:
            body = []
            for _, inner in lines:
                if FENCE.match(inner):
                    break
                body.append(inner)
            blocks.append(made_block(page, number, fence[1].strip(), body, notes))
            notes = {}
        elif notes and line.strip():
            raise ValueError(f"{page}:{number}: no code block follows the comment '{notes}'")
    for number, block in enumerate(blocks):
        block.number = number
    return blocks


def made_block(page, line, language, body, notes):
    if language not in RUN + SHOWN and "skip" not in notes:
        raise ValueError(f"{page}:{line}: the block's language is '{language}', expected one of {', '.join(RUN + SHOWN)}, "
                         "or a comment <!-- test: skip REASON --> above it")
    return Block(page, line, language, "".join(text + "\n" for text in body), notes)


def all_blocks():
    return [block for page in pages() for block in blocks_of(page)]
