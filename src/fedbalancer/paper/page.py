"""An item as one self-contained page: what was found, its charts, the tables behind them, and how it was made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from fedbalancer.paper.item import Presentation
from fedbalancer.paper.text import further_tables, notes_of, parts_table
from fedbalancer.reporting.charts import encode_charts
from fedbalancer.reporting.page import read_asset, render
from fedbalancer.reporting.plotting import image_bytes


def page_html(document: Mapping[str, Any], shown: Presentation, why: str) -> str:
    """The page of an item. Charts take the place of the drawing that has the item's name, if they show all of it."""
    charts, looks = shown.charts.drawn, dict(shown.charts.looks)
    replaced = str(document["item"]) if charts and shown.charts.instead else ""
    pictures = [
        (name, _picture(name, figure, str(document["title"])))
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
        pictures=pictures,
        first=shown.tables[:1],
        why=_from_markdown(why),
        further=further_tables(shown),
        notes=notes_of(document, shown),
        made=parts_table(document),
        data=Markup(encode_charts(charts, looks)) if charts else None,
    )


def _picture(name: str, figure: Any, title: str) -> Markup:
    """The drawing inside of the page, with an id of its own for every part and a name for those who cannot see it."""
    drawn = image_bytes(figure, "svg").decode()
    drawn = drawn[drawn.index("<svg") :]
    drawn = drawn.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(title)}, {escape(name)}: the tables below hold its numbers" ', 1
    )
    return Markup(re.sub(r'(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{name}-", drawn))


def _from_markdown(text: str) -> Markup:
    """The hand-written paragraph, which is Markdown; what is HTML in it stays text. A page leads to pages, where the
    text leads to texts."""
    made = MarkdownIt("commonmark", {"html": False}).render(text)
    return Markup(re.sub(r'(href="(?!\w+:|/)[^"#]*)\.md(#[^"]*)?"', r'\1.html\2"', made))
