"""An item as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbalancer.paper.item import Finding, Presentation, Table

FINDINGS_HEADER = ("Task", "Figure", "Ours (95 % interval)", "The paper's", "Verdict", "Place")
FINDINGS_TITLE = "Ours beside the paper's"
VERDICT_NOTE = (
    "The paper's interval is its mean ± one standard deviation as printed; a verdict is resolved if our whole 95 % "
    "interval over seeds gives it."
)


def markdown(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """The whole text of an item."""
    parts = [f"# {document['place']}: {document['title']}", escaped(shown.headline)]
    parts += [f"![{escaped(document['title'])}]({name}.svg)" for name in shown.figures]
    parts += [table_markdown(table) for table in shown_tables(shown)]
    parts += ["## Why it differs from the paper\n\n" + why] if why else []
    parts += ["## Notes\n\n" + "\n".join(f"- {escaped(note)}" for note in notes_of(document, shown))]
    parts += ["## How it was made", table_markdown(parts_table(document))]
    return "\n\n".join(parts) + "\n"


def shown_tables(shown: Presentation) -> list[Table]:
    """The item's own tables, then the findings."""
    return [*shown.tables, *([findings_table(shown.findings)] if shown.findings else [])]


def findings_table(findings: Sequence[Finding]) -> Table:
    rows = [
        (f.task, f.what, f.ours_text, str(f.paper or "–"), f.verdict.words, f.paper.place if f.paper else "–")
        for f in findings
    ]
    return Table(FINDINGS_TITLE, FINDINGS_HEADER, rows, VERDICT_NOTE)


def parts_table(document: Mapping[str, Any]) -> Table:
    """How every task was measured."""
    rows = [
        (
            task, str(part["scale"]), str(part["seeds"]), part["measured"][:10], f"{part['seconds']:.0f} s",
            ", ".join(f"{name} {version}" for name, version in part["versions"].items()),
            ", ".join(f"{key}={value}" for key, value in part["settings"].items()) or "the task's own",
            f"`{part['command']}`",
        )
        for task, part in document["parts"].items()
    ]  # fmt: skip
    return Table("", ("Task", "Scale", "Seeds", "Date", "Took", "Versions", "Settings", "Command"), rows)


def notes_of(document: Mapping[str, Any], shown: Presentation) -> list[str]:
    """What the item says of itself, and what went wrong while its tasks were measured."""
    said = [f"{task}: {note}" for task, part in document["parts"].items() for note in part["notes"]]
    return [*shown.notes, *said]


def table_markdown(table: Table) -> str:
    """A table with its title above and its note below."""
    align = "|".join([":--", *["--:"] * (len(table.header) - 1)])
    lines = [_line(table.header), f"|{align}|", *(_line(row) for row in table.rows)]
    parts = [f"## {escaped(table.title)}"] if table.title else []
    return "\n\n".join([*parts, "\n".join(lines), *([escaped(table.note)] if table.note else [])])


def escaped(text: str) -> str:
    """Text that stays text in Markdown: no tags, no ends of a cell.

    >>> escaped("a|b <script>")
    'a\\\\|b &lt;script&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"
