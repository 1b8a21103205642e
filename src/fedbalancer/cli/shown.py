"""The table of a comparison or a run, and what an item of the paper found, as every command shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedbalancer.paper.write import Written
    from fedbalancer.reporting import Comparison


def show(comparison: Comparison | None, table: Path) -> None:
    """Drawn in a terminal, and as it stands in table.md for whatever reads it from a pipe; of a single run there are no
    scores."""
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


def show_item(written: Written, *, as_json: bool) -> None:
    """What an item found, and where its page is."""
    from fedbalancer.files import readable

    if as_json:
        typer.echo(json.dumps(readable(written.shown.json)))
    else:
        typer.echo(written.shown.headline)
        typer.echo(f"page: {written.page}")
