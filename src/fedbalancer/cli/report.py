"""`fedbalancer report`: table, figures and page of a folder, made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.shown import show


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
        show(written.comparison, written.table)
        typer.echo(f"report: {written.page}")
    for what in written.damaged:
        typer.echo(f"error: damaged: {what}", err=True)
    if written.damaged:
        raise typer.Exit(EXIT_USER_ERROR)
