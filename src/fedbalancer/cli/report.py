"""`fedbalancer report`: table, figures and page of a folder, made anew: of runs, or of an item of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.shown import show, show_item


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison or a paper item.")],
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
    run is named, and makes the exit code 2. Of an item of `fedbalancer paper` the page, the text and the drawings are
    made anew from its tables, with what its why.md says now; nothing is measured.

    Examples:

        fedbalancer report runs/compare-watch

        fedbalancer report runs/compare-watch --rule paper

        fedbalancer report runs/paper/results/table1
    """
    from fedbalancer.errors import UnknownName
    from fedbalancer.reporting import write_report

    if stamp not in ("end", "start"):
        raise UnknownName("stamp", stamp, ("end", "start"))
    shares = options.targets(target)
    if (folder / "item.json").is_file():
        _renew_item(folder, otherwise=rule is not None or shares is not None, as_json=as_json)
        return
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


def _renew_item(folder: Path, *, otherwise: bool, as_json: bool) -> None:
    """Show an item anew; `otherwise` is whether it was asked for by another rule or target than it was measured by."""
    from fedbalancer.errors import BadSetting
    from fedbalancer.paper.renew import renew_folder

    if otherwise:
        raise BadSetting(
            f"{folder} is an item of the paper, which keeps the rule and the targets that it was measured by; "
            "`fedbalancer paper ITEM --rule` makes it by the other"
        )
    show_item(renew_folder(folder), as_json=as_json)
