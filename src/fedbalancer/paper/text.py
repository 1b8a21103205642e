"""An item as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbalancer.paper.item import Finding, Presentation, Table

FINDINGS_HEADER = ("Figure", "Ours (95 % interval)", "The paper's", "Verdict", "Place")
FINDINGS_TITLE = "Ours beside the paper's"
VERDICT_NOTE = (
    "The paper's interval is its mean ± one standard deviation as printed; a verdict is resolved if our whole 95 % "
    "interval over seeds gives it."
)


def markdown(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """The whole text of an item."""
    points = "\n".join(f"- {escaped(point)}" for point in shown.points)
    parts = [
        f"# {document['place']}: {document['title']}",
        points if len(shown.points) > 1 else escaped(shown.headline),
    ]
    parts += [f"![{escaped(document['title'])}]({name}.svg)" for name in shown.figures]
    parts += [table_markdown(table) for table in shown.tables[:1]]
    parts += ["## Why it differs from the paper\n\n" + why] if why else []
    parts += [table_markdown(table) for table in further_tables(shown)]
    parts += ["## Notes\n\n" + "\n".join(f"- {escaped(note)}" for note in notes_of(document, shown))]
    parts += ["## How it was made", table_markdown(parts_table(document))]
    return "\n\n".join(parts) + "\n"


def further_tables(shown: Presentation) -> list[Table]:
    """The tables after the item's main one: the findings, task by task, then the others."""
    tasks = list(dict.fromkeys(found.task for found in shown.findings))
    of_task = {task: [found for found in shown.findings if found.task == task] for task in tasks}
    found = [
        findings_table(f"{task}: ours beside the paper's" if len(tasks) > 1 else FINDINGS_TITLE, of_task[task])
        for task in tasks
    ]
    return [*found, *shown.tables[1:]]


def findings_table(title: str, findings: Sequence[Finding]) -> Table:
    """Ours, the paper's, and the verdict."""
    rows = [
        (f.what, f.ours_text, str(f.paper or "–"), f.verdict.words, f.paper.place if f.paper else "–")
        for f in findings
    ]  # fmt: skip
    return Table(title, FINDINGS_HEADER, rows, VERDICT_NOTE)


def parts_table(document: Mapping[str, Any]) -> Table:
    """How every task was measured."""
    rows = [
        (
            task, str(part["scale"]), str(part["seeds"]), part["measured"][:10], _took(part),
            ", ".join(f"{name} {version}" for name, version in part["versions"].items()),
            ", ".join(f"{key}={value}" for key, value in part["settings"].items()) or "the task's own",
            f"`{part['command']}`",
        )
        for task, part in document["parts"].items()
    ]  # fmt: skip
    return Table("", ("Task", "Scale", "Seeds", "Date", "Took", "Versions", "Settings", "Command"), rows)


def _took(part: Mapping[str, Any]) -> str:
    """How long the last command took, and how much it had to do."""
    return f"{part['seconds']:.0f} s" + (f" ({part['runs']})" if part.get("runs") else "")


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
