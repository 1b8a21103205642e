"""The leaderboard as a page and as Markdown, in the folder of results itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedbalancer.files import write_text
from fedbalancer.leaderboard import board as shown
from fedbalancer.leaderboard.board import Board, Row, boards
from fedbalancer.leaderboard.entries import read_entries
from fedbalancer.leaderboard.entry import Entry

PAGE, TEXT = "leaderboard.html", "leaderboard.md"
RULE = (
    "Speed-up: how many times as fast as the best FedAvg variant of the same comparison a method reached the target, "
    "with a 95 % interval over seeds. With it the accuracy at the end of the budget, and on how many of the seeds the "
    "target was reached. ▲ the whole interval is above 1, ▼ below, ○ the seeds do not resolve it; < and > are bounds, "
    "where a run never arrived. Entries with a name are a user's own measurements, against references of their own; "
    "“ours” is this project's own method."
)


@dataclass(frozen=True)
class Written:
    """A leaderboard that was written."""

    page: Path
    text: Path
    boards: tuple[Board, ...]
    entries: tuple[Entry, ...]


def write(folder: Path) -> Written:
    """leaderboard.html and leaderboard.md of a folder of results."""
    entries = read_entries(folder)
    made = boards(entries)
    write_text(folder / PAGE, page_html(entries, made))
    write_text(folder / TEXT, markdown(made))
    return Written(folder / PAGE, folder / TEXT, tuple(made), tuple(entries))


def page_html(entries: list[Entry], made: list[Board]) -> str:
    """One self-contained page."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    choices = {
        "task": _choices(entry.task for entry in entries),
        "scale": _choices(entry.scale for entry in entries),
        "rule": _choices(entry.rule for entry in entries),
        "target": _choices(f"{entry.target_share:.0%}" for entry in entries),
        "item": _choices(entry.item for entry in entries),
        "whose": _choices(entry.whose or "project" for entry in entries),
    }
    return environment.from_string(_text("board.html")).render(
        boards=made, entries=entries, choices=choices, rule=RULE, signs=shown.SIGNS, sign_words=shown.SIGN_WORDS,
        ratio_text=shown.ratio_text, interval_text=shown.interval_text, accuracy_text=shown.accuracy_text,
        reached_text=shown.reached_text,
        css=Markup(_text("board.css")), script=Markup(_text("board.js")),
    )  # fmt: skip


def markdown(made: list[Board]) -> str:
    """The boards as Markdown tables."""
    parts = ["# Leaderboard", RULE]
    for each in made:
        header = ["Method", "Whose", *each.tasks]
        rows = [row for row in each.rows if not row.of_a_grid]
        lines = [_line(map(_cell, header)), "|:--|:--|" + "--:|" * len(each.tasks)]
        lines += [_line([_method(row), _cell(row.whose or "project"), *map(_words, row.cells)]) for row in rows]
        parts += filter(None, [f"## {_cell(each.title)}", each.note, "\n".join(lines)])
        if left := len(each.rows) - len(rows):
            parts.append(f"And {left} settings in brackets over which the best were looked for; the page has them.")
    return "\n\n".join(parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _method(row: Row) -> str:
    return f"{_cell(row.method)}{' (ours)' if row.ours else ''}"


def _words(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    interval = shown.interval_text(entry.ratio_low, entry.ratio_high, 2)
    ratio = f"{shown.ratio_text(entry)}{f' ({interval})' if interval else ''} {shown.SIGNS[entry.verdict]}".strip()
    # A text leads to texts: an item has one beside its page. What users added is a page only.
    link = entry.link if entry.whose else entry.link.removesuffix(".html") + ".md" * entry.link.endswith(".html")
    linked = f"[{ratio}]({link})" if link else ratio
    return ", ".join(filter(None, [linked, shown.accuracy_text(entry.accuracy), shown.reached_text(entry)]))


def _cell(text: str) -> str:
    """A text in a Markdown table, with nothing in it that Markdown or HTML would take for its own."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return " ".join(text.split())


def _choices(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})


def _text(name: str) -> str:
    return resources.files("fedbalancer.leaderboard").joinpath(name).read_text(encoding="utf-8")
