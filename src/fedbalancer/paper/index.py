"""README.md of a folder of results: every item that is there, from what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbalancer.files import write_text
from fedbalancer.paper.text import escaped
from fedbalancer.paper.write import DOCUMENT, read_document, read_why

README = "README.md"
BEGIN = "<!-- written by `fedbalancer paper`; a paragraph of your own goes into why.md of an item's folder -->"


def write_index(out: Path) -> Path:
    """Write the index of all items in `out`. A README.md of somebody else's is left alone."""
    file = out / README
    if file.is_file() and not file.read_text(encoding="utf-8").startswith(BEGIN):
        return file
    folders = sorted((path.parent for path in out.glob(f"*/{DOCUMENT}")), key=lambda path: path.name)
    documents = [(folder, read_document(folder)) for folder in folders]
    rows = [_row(folder, document) for folder, document in documents]
    header = ["| Item | What | Tasks (seeds) | Measured |", "|:--|:--|:--|:--|"]
    board = [BOARD] if (out / "leaderboard.md").is_file() else []
    text = [BEGIN, "# Results", INTRODUCTION, *board, "\n".join([*header, *rows])]
    text += [_section(folder, document) for folder, document in documents]
    write_text(file, "\n\n".join(text) + "\n")
    return file


BOARD = (
    "All methods on one page, with those that are not the paper's: the [leaderboard](leaderboard.md); `fedbalancer "
    "leaderboard` on this folder makes it anew, also as a page with filters."
)
INTRODUCTION = (
    "The paper's tables and figures, made anew by `fedbalancer paper ITEM`: figures of ours beside the paper's, with a "
    "verdict computed for each. Every folder has a page (`.html`), the same as Markdown, drawings (SVG and PNG), and "
    "the numbers as Parquet, a row per seed."
)


def _row(folder: Path, document: dict[str, Any]) -> str:
    parts = document["parts"]
    tasks = ", ".join(f"{task} ({part['seeds']})" for task, part in parts.items())
    measured = max((part["measured"][:10] for part in parts.values()), default="–")
    link = f"[{folder.name}]({folder.name}/{document['item']}.md)"
    return f"| {link} | {escaped(document['place'])}: {escaped(document['title'])} | {escaped(tasks)} | {measured} |"


def _section(folder: Path, document: dict[str, Any]) -> str:
    commands = dict.fromkeys(part["command"] for part in document["parts"].values())
    shown = [
        f"## {folder.name}",
        f"{escaped(document['title'])} ({escaped(document['place'])}).",
        escaped(document["headline"]),
    ]
    shown += ["\n".join(f"    {command}" for command in commands)]
    why = read_why(folder)
    return "\n\n".join([*shown, *([f"**Why it differs from the paper.** {why}"] if why else [])])
