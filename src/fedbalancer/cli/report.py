"""`fedbalancer report`: write table, figures and page of a run, a comparison or an item of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.output import show, show_item


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, a comparison or an item of the paper.")],
    rule: Annotated[
        str | None, typer.Option(help="Scoring rule: fair or paper. Default: the rule of the comparison.")
    ] = None,
    target: options.Targets = None,
    stamp: Annotated[
        str,
        typer.Option(
            help="Rule paper: count evaluations at the end, or (as in the authors' notebooks) the start of a round."
        ),
    ] = "end",
    as_json: options.Json = False,
) -> None:
    """Write summary.json, table.md, figures and report.html of a run or a comparison, and print its table.

    Damaged runs are listed, and the exit code is then 2. For an item of `fedbalancer paper`, the page, text and figures
    are rewritten from its tables and its why.md; nothing is measured.

    Examples:

        fedbalancer report runs/compare-watch

        fedbalancer report runs/compare-watch --rule paper

        fedbalancer report runs/paper/results/table1
    """
    from fedbalancer.core.errors import UnknownName
    from fedbalancer.reporting import write_report

    if stamp not in ("end", "start"):
        raise UnknownName("stamp", stamp, ("end", "start"))
    shares = options.parse_targets(target)
    if (folder / "item.json").is_file():
        _renew_item(folder, rescored=rule is not None or shares is not None, as_json=as_json)
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


def _renew_item(folder: Path, *, rescored: bool, as_json: bool) -> None:
    """Rewrite an item; `rescored` is whether another rule or target was requested."""
    from fedbalancer.core.errors import BadSetting
    from fedbalancer.paper.folder import renew_item

    if rescored:
        raise BadSetting(
            f"{folder} is an item of the paper and keeps the rule and the targets it was measured with; use "
            "`fedbalancer paper ITEM --rule` for another rule"
        )
    show_item(renew_item(folder), as_json=as_json)
