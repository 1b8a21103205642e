"""`fedbalancer leaderboard`: show a folder of results as one page, or add a comparison to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli.options import Json
from fedbalancer.core.errors import BadSetting

if TYPE_CHECKING:
    from fedbalancer.reporting.leaderboard import Leaderboard

RESULTS = Path("docs") / "results"
ADD = "add"


def leaderboard(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR] | add FOLDER [DIR]", help=f"Folder of results. Default: {RESULTS}."),
    ] = None,
    name: Annotated[str, typer.Option(help="Owner of the comparison to add.")] = "own",
    as_json: Json = False,
) -> None:
    """Show all results of a folder on one page: tasks x methods, with intervals, filters and links.

    `add` adds a comparison of your own, marked with your name; the folder DIR is created if it does not exist.

    Examples:

        fedbalancer leaderboard

        fedbalancer leaderboard add runs/compare-har --name "Ann's lab"
    """
    from fedbalancer.reporting.leaderboard import write_leaderboard
    from fedbalancer.reporting.leaderboard_entries import add_comparison

    arguments = list(words or [])
    adding = arguments[:1] == [ADD]
    if len(arguments) > (3 if adding else 1) or arguments == [ADD]:
        raise BadSetting("pass a folder of results, or: add FOLDER [DIR]")
    results = Path(arguments[-1]) if len(arguments) == (3 if adding else 1) else RESULTS
    if adding:
        place = add_comparison(Path(arguments[1]), results, name)
        typer.echo(f"added: {place}; delete this folder to remove the entry", err=True)
    print_leaderboard(write_leaderboard(results), as_json)


def print_leaderboard(written: Leaderboard, as_json: bool) -> None:
    """Print the number of entries and the page, or all entries as JSON."""
    if as_json:
        typer.echo(json.dumps([vars(entry) for entry in written.entries]))
        return
    tasks, owners = {entry.task for entry in written.entries}, {entry.owner for entry in written.entries if entry.owner}
    methods = {entry.method for entry in written.entries}
    added = f", with entries of {', '.join(sorted(owners))}" if owners else ""
    typer.echo(f"{len(written.entries)} entries: {len(methods)} methods on {len(tasks)} tasks{added}")
    typer.echo(f"leaderboard: {written.page}")
