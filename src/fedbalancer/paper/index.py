"""The README.md of a folder of results: a table of its items, their findings and their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbalancer.files import write_text
from fedbalancer.paper.text import escaped
from fedbalancer.paper.write import DOCUMENT, read_document

README = "README.md"
BEGIN = "<!-- written by `fedbalancer paper`; a paragraph of your own goes into why.md of an item's folder -->"


def write_index(out: Path) -> Path:
    """Write the index of all items in `out`, unless its README.md was written by hand."""
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
    "All methods in one table, including those of other papers: [leaderboard](leaderboard.md). `fedbalancer "
    "leaderboard` on this folder rebuilds it, also as a page with filters."
)
INTRODUCTION = (
    "The paper's tables and figures, reproduced with `fedbalancer paper ITEM`. The page of an item has our values next "
    "to the paper's, a computed verdict for each, and why they differ. Its folder has the same page with interactive "
    "charts (`.html`), the charts (SVG and PNG) and the data as Parquet, with one row per seed."
)


def _row(folder: Path, document: dict[str, Any]) -> str:
    parts = document["parts"]
    tasks = ", ".join(f"{task} ({part['seeds']})" for task, part in parts.items())
    measured = max((part["measured"][:10] for part in parts.values()), default="–")
    link = f"[{folder.name}]({folder.name}/{document['item']}.md)"
    return f"| {link} | {escaped(document['place'])}: {escaped(document['title'])} | {escaped(tasks)} | {measured} |"


def _section(folder: Path, document: dict[str, Any]) -> str:
    """The findings of an item and the commands that reproduce it."""
    commands = dict.fromkeys(part["command"] for part in document["parts"].values())
    page = f"[values, charts and differences from the paper]({folder.name}/{document['item']}.md)"
    shown = [
        f"## {folder.name}",
        f"{escaped(document['place'])}: {escaped(document['title'])} ({page}).",
        _findings(document),
        "\n".join(["```sh", *commands, "```"]),
    ]
    return "\n\n".join(shown)


def _findings(document: dict[str, Any]) -> str:
    """The headline of an item; a list if it has one finding per task."""
    findings = document["headline"].rstrip(".").split("; ")
    by_task = len(findings) > 1 and all(finding.partition(":")[0] in document["parts"] for finding in findings)
    return "\n".join(f"- {escaped(finding)}" for finding in findings) if by_task else escaped(document["headline"])
