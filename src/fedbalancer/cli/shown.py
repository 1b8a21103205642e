"""Print the table of a comparison or a run, and the result of an item of the paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedbalancer.paper.folder import WrittenItem
    from fedbalancer.reporting import Comparison


def show(comparison: Comparison | None, table: Path) -> None:
    """Print a table: formatted in a terminal, otherwise the text of table.md.

    Args:
        comparison: The scores; None for a single run.
        table: The file table.md.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from fedbalancer.reporting.terminal import rich_table

    console, text = Console(), table.read_text(encoding="utf-8")
    if not console.is_terminal:
        typer.echo(text)
    elif comparison is None:
        console.print(Markdown(text))
    else:
        console.print(rich_table(comparison))
        for note in comparison.notes:
            typer.echo(f"note: {note}", err=True)


def show_item(written: WrittenItem, *, as_json: bool) -> None:
    """Print the result of an item and the path of its page."""
    from fedbalancer.core.files import readable

    if as_json:
        typer.echo(json.dumps(readable(written.shown.json)))
    else:
        typer.echo(written.shown.headline)
        typer.echo(f"page: {written.page}")
