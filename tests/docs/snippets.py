"""The commands and the Python in the code blocks of README and pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "fedbalancer", "pip", "make", "python", ".venv/bin/python", "flwr", "flower-superlink", "flower-supernode",
    "pytest", "ray", "docker", "uv", "git", "cd", "curl",
)  # fmt: skip
REFERENCE = re.compile(r"<!-- api: .*?<!-- end of api -->", re.DOTALL)
"""Text from docstrings, whose examples are run as doctests."""
RUN_WHOLE = ("quickstart",)
"""Pages whose fenced blocks are run like those of a tutorial."""
COMMAND = re.compile(rf"(?:{'|'.join(map(re.escape, PROGRAMS))})(?:\s|$)")

PYTHON = re.compile(r"^\s*(import |from \S+ import |@app|class \w+|def \w+|\w+ = (fb|fedbalancer)[.(])", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """One command, or one block of Python, and where it stands."""

    page: str
    text: str
    fenced: bool = False  # as ```python


def pages() -> list[Path]:
    """All that a reader sees, but the tutorials, which run as a whole, and the results, whose commands made them."""
    found = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    found += sorted((ROOT / "examples").glob("*/README.md"))
    inside = sorted((ROOT / "docs").rglob("*.md"))
    return found + [path for path in inside if path.relative_to(ROOT / "docs").parts[0] not in ("results", "tutorials")]


def commands() -> list[Snippet]:
    """Every command, without its comment; lines that end in a backslash go on."""
    found = []
    for path, block, _ in _blocks():
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        typed = (re.split(r"\s+#", line)[0].strip() for line in lines)
        found += [Snippet(_name(path), line) for line in typed if COMMAND.match(line)]
    return found


def named() -> list[Snippet]:
    """Every `fedbalancer` command in a sentence or a table."""
    parser = MarkdownIt().enable("table")
    return [
        Snippet(_name(path), child.content)
        for path in pages()
        for token in parser.parse(path.read_text())
        for child in token.children or ()
        if child.type == "code_inline" and child.content.startswith("fedbalancer ")
    ]


def python() -> list[Snippet]:
    """Every block that is Python: said to be, or without a language and with a statement that only Python has."""
    found = (block for block in _blocks() if block[2] == "python" or _is_python(*block[1:]))
    return [Snippet(_name(path), block, kind == "python") for path, block, kind in found]


def _blocks() -> list[tuple[Path, str, str]]:
    """Page, text and language of every block of code."""
    parser = MarkdownIt()
    return [
        (path, token.content, token.info.partition(" ")[0])
        for path in pages()
        for token in parser.parse(REFERENCE.sub("", path.read_text()))
        if token.type in ("fence", "code_block") and not (path.stem in RUN_WHOLE and token.type == "fence")
    ]


def _is_python(block: str, kind: str) -> bool:
    return not kind and bool(PYTHON.search(block))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
