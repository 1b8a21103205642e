"""`fedbalancer report`: table, figures and page of a folder, made anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import EXIT_USER_ERROR

if TYPE_CHECKING:
    from fedbalancer.report import Report


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a comparison.")],
    rule: Annotated[
        str | None, typer.Option(help="How to score: fair or paper (default: as the runs were made for).")
    ] = None,
    target: options.Targets = None,
    stamp: Annotated[
        str,
        typer.Option(help="Rule paper: rounds count at their end, or at their start as in the authors' notebooks."),
    ] = "end",
    as_json: options.Json = False,
) -> None:
    """Write summary.json, table.md, figures and report.html of a run or a comparison, and show its table. A damaged
    run is named, and makes the exit code 2.

    Examples:

        fedbalancer report runs/compare-watch

        fedbalancer report runs/compare-watch --rule paper
    """
    from fedbalancer.errors import UnknownName
    from fedbalancer.report import write_report

    if stamp not in ("end", "start"):
        raise UnknownName("stamp", stamp, ("end", "start"))
    shares = options.targets(target)
    written = write_report(folder, stamp="end" if stamp == "end" else "start", rule=rule, targets=shares)
    if as_json:
        typer.echo(written.summary.read_text(encoding="utf-8"))
    else:
        _show(written)
        typer.echo(f"report: {written.page}")
    for what in written.damaged:
        typer.echo(f"error: damaged: {what}", err=True)
    if written.damaged:
        raise typer.Exit(EXIT_USER_ERROR)


def _show(written: Report) -> None:
    """The table: drawn in a terminal, and as it stands in table.md for whatever reads it from a pipe."""
    from rich.console import Console
    from rich.markdown import Markdown

    from fedbalancer.report.tables import rich_table

    console, text = Console(), written.table.read_text(encoding="utf-8")
    if not console.is_terminal:
        typer.echo(text)
    elif written.comparison is None:
        console.print(Markdown(text))
    else:
        console.print(rich_table(written.comparison))
        for note in written.comparison.notes:
            typer.echo(f"note: {note}", err=True)
