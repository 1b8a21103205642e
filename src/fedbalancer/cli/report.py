"""`fedbalancer report`: table, figures and page of a folder, made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.options import Json


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a comparison.")],
    stamp: Annotated[
        str,
        typer.Option(help="Rounds count at their end, or at their start as in the authors' notebooks."),
    ] = "end",
    as_json: Json = False,
) -> None:
    """Write summary.json, table.md, figures and report.html of a run or a comparison.

    Example:

        fedbalancer report runs/compare-watch
    """
    from fedbalancer.errors import UnknownName
    from fedbalancer.report import write_report

    if stamp not in ("end", "start"):
        raise UnknownName("stamp", stamp, ("end", "start"))
    written = write_report(folder, stamp="end" if stamp == "end" else "start")
    if as_json:
        typer.echo(written.summary.read_text(encoding="utf-8"))
    else:
        typer.echo(written.table.read_text(encoding="utf-8"))
        typer.echo(f"report: {written.page}")
