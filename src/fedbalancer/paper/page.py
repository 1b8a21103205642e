"""An item as Markdown and as one HTML file: headline, charts, tables, notes, and how it was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from fedbalancer.paper.item import Finding, Presentation, Table
from fedbalancer.reporting.charts import encode_charts
from fedbalancer.reporting.page import read_asset, render
from fedbalancer.reporting.plotting import image_bytes

FINDINGS_HEADER = ("Value", "Ours (95% interval)", "Paper", "Verdict", "Place")
FINDINGS_TITLE = "Our results and the paper's"
VERDICT_NOTE = (
    "The paper's interval is its mean ± one standard deviation as printed. A verdict is resolved if our whole 95% "
    "interval over seeds gives it."
)


def item_markdown(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """Return the text of an item.

    Args:
        document: The content of item.json.
        shown: The presentation of the item.
        why: The hand-written explanation of differences from the paper, as Markdown.
    """
    points = "\n".join(f"- {escape_text(point)}" for point in shown.points)
    parts = [
        f"# {document['place']}: {document['title']}",
        points if len(shown.points) > 1 else escape_text(shown.headline),
    ]
    parts += [f"![{escape_text(document['title'])}]({name}.svg)" for name in shown.figures]
    parts += [table_markdown(table) for table in shown.tables[:1]]
    parts += ["## Differences from the paper\n\n" + why] if why else []
    parts += [table_markdown(table) for table in further_tables(shown)]
    parts += ["## Notes\n\n" + "\n".join(f"- {escape_text(note)}" for note in all_notes(document, shown))]
    parts += ["## Reproduction", table_markdown(parts_table(document))]
    return "\n\n".join(parts) + "\n"


def item_html(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """Return the page of an item. Complete charts replace the figure that has the item's name.

    Args:
        document: The content of item.json.
        shown: The presentation of the item.
        why: The hand-written explanation of differences from the paper, as Markdown.
    """
    charts, looks = shown.charts.charts, dict(shown.charts.looks)
    replaced = str(document["item"]) if charts and shown.charts.complete else ""
    figures = [
        (name, _embed_figure(name, figure, str(document["title"])))
        for name, figure in shown.figures.items()
        if name != replaced
    ]
    return render(
        read_asset("item.html", "fedbalancer.paper"),
        title=f"{document['place']}: {document['title']}",
        headline=shown.headline,
        points=shown.points,
        charts=charts,
        looks=looks,
        figures=figures,
        first=shown.tables[:1],
        why=_render_markdown(why),
        further=further_tables(shown),
        notes=all_notes(document, shown),
        parts=parts_table(document),
        data=Markup(encode_charts(charts, looks)) if charts else None,
    )


def further_tables(shown: Presentation) -> list[Table]:
    """Return the tables after the main one: findings by task, then the others."""
    tasks = list(dict.fromkeys(finding.task for finding in shown.findings))
    by_task = {task: [finding for finding in shown.findings if finding.task == task] for task in tasks}
    findings = [
        findings_table(f"{task}: our results and the paper's" if len(tasks) > 1 else FINDINGS_TITLE, by_task[task])
        for task in tasks
    ]
    return [*findings, *shown.tables[1:]]


def findings_table(title: str, findings: Sequence[Finding]) -> Table:
    """Return the table of our values, the paper's, and the verdicts.

    Args:
        title: The title of the table.
        findings: The findings.
    """
    rows = [
        (f.what, f.ours_text, str(f.paper or "–"), f.verdict.text, f.paper.place if f.paper else "–")
        for f in findings
    ]  # fmt: skip
    return Table(title, FINDINGS_HEADER, rows, VERDICT_NOTE)


def parts_table(document: Mapping[str, Any]) -> Table:
    """Return the table of how every task was measured."""
    rows = [
        (
            task, str(part["scale"]), str(part["seeds"]), part["measured"][:10], _duration_text(part),
            ", ".join(f"{name} {version}" for name, version in part["versions"].items()),
            ", ".join(f"{key}={value}" for key, value in part["settings"].items()) or "the task's own",
            f"`{part['command']}`",
        )
        for task, part in document["parts"].items()
    ]  # fmt: skip
    return Table("", ("Task", "Scale", "Seeds", "Date", "Duration", "Versions", "Settings", "Command"), rows)


def _duration_text(part: Mapping[str, Any]) -> str:
    """Format the duration of the last command, and the number of its runs."""
    return f"{part['seconds']:.0f} s" + (f" ({part['runs']})" if part.get("runs") else "")


def all_notes(document: Mapping[str, Any], shown: Presentation) -> list[str]:
    """Return the notes of the item, and those of the measurement of its tasks.

    Args:
        document: The content of item.json.
        shown: The presentation of the item.
    """
    measured = [f"{task}: {note}" for task, part in document["parts"].items() for note in part["notes"]]
    return [*shown.notes, *measured]


def table_markdown(table: Table) -> str:
    """Return a table as Markdown, with its title above and its note below."""
    align = "|".join([":--", *["--:"] * (len(table.header) - 1)])
    lines = [_line(table.header), f"|{align}|", *(_line(row) for row in table.rows)]
    parts = [f"## {escape_text(table.title)}"] if table.title else []
    return "\n\n".join([*parts, "\n".join(lines), *([escape_text(table.note)] if table.note else [])])


def escape_text(text: str) -> str:
    """Escape a text for Markdown: no tags, no ends of a cell.

    Example:
        >>> escape_text("a|b <script>")
        'a\\\\|b &lt;script&gt;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escape_text(cell) for cell in cells)} |"


def _embed_figure(name: str, figure: Any, title: str) -> Markup:
    """Return a figure as inline SVG, with unique ids and a label for screen readers."""
    svg = image_bytes(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    label = f"{escape(title)}, {escape(name)}: the tables below contain its values"
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return Markup(re.sub(r'(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{name}-", svg))


def _render_markdown(text: str) -> Markup:
    """Render Markdown without HTML; links to Markdown files become links to pages."""
    html = MarkdownIt("commonmark", {"html": False}).render(text)
    return Markup(re.sub(r'(href="(?!\w+:|/)[^"#]*)\.md(#[^"]*)?"', r'\1.html\2"', html))
