"""An item as one self-contained page: the drawing, the tables below it, and how it was made. It fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedbalancer.paper.item import Presentation, Table
from fedbalancer.paper.picture import svg
from fedbalancer.paper.text import notes_of, parts_table, shown_tables

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --faint: #5f6368; --line: #d9dbe0; --ground: #ffffff;
  --mark: #f3f5f9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ec; --faint: #a5a9b1; --line: #3b3f48; --ground: #16181d; --mark: #22252c }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 0 auto;
  max-width: 72rem; padding: 1rem }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2rem }
.headline { font-size: 1.1rem } .note { color: var(--faint); font-size: .9rem }
figure { margin: 1rem 0; background: #ffffff; border-radius: 6px; padding: .5rem; overflow-x: auto }
figure svg { max-width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left } thead th { background: var(--mark) }
td.better { color: #00785a; font-weight: 600 } td.worse { color: #b34700; font-weight: 600 }
@media (prefers-color-scheme: dark) { td.better { color: #4fd1a5 } td.worse { color: #ff9d5c } }
code { font-size: .85em; overflow-wrap: anywhere }
@media print { body { max-width: none } figure { break-inside: avoid } }
"""


def page_html(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """The page of an item."""
    title = f"{document['place']}: {document['title']}"
    body = [f"<h1>{escape(title)}</h1>", f'<p class="headline">{escape(shown.headline)}</p>']
    body += [_figure(name, figure, str(document["title"])) for name, figure in shown.figures.items()]
    body += [_table(table) for table in shown_tables(shown)]
    body += ["<h2>Why it differs from the paper</h2>", *_paragraphs(why)] if why else []
    notes = notes_of(document, shown)
    body += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"] if notes else []
    body += ["<h2>How it was made</h2>", _table(parts_table(document))]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    lines = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n<main>\n{lines}\n</main>\n</body></html>\n'


def _figure(name: str, figure: Any, title: str) -> str:
    """The drawing inside of the page, with an id of its own for every part and a name for those who cannot see it."""
    drawn = svg(figure).decode()
    drawn = drawn[drawn.index("<svg") :]
    drawn = drawn.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(title)}, {escape(name)}: the tables below hold its numbers" ', 1
    )
    drawn = re.sub(r'(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    return f"<figure>{drawn}</figure>"


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>{note}'
    )


def _row(cells: Sequence[str]) -> str:
    return f'<th scope="row">{_cell(cells[0])}</th>' + "".join(
        f"<td{_kind(cell)}>{_cell(cell)}</td>" for cell in cells[1:]
    )


def _cell(text: str) -> str:
    """A cell; a command stands in backquotes."""
    if text.startswith("`") and text.endswith("`") and len(text) > 1:
        return f"<code>{escape(text[1:-1])}</code>"
    return escape(text)


def _kind(text: str) -> str:
    word = text.partition(",")[0]
    return f' class="{word}"' if word in ("better", "worse") else ""


def _paragraphs(text: str) -> list[str]:
    return [f"<p>{escape(' '.join(part.split()))}</p>" for part in re.split(r"\n\s*\n", text) if part.strip()]
