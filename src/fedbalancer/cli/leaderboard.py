"""`fedbalancer leaderboard`: a folder of results as one page, and a user's own comparison in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli.options import Json
from fedbalancer.errors import BadSetting

if TYPE_CHECKING:
    from fedbalancer.leaderboard.write import Written

RESULTS = Path("docs") / "results"
ADD = "add"


def leaderboard(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR] | add FOLDER [DIR]", help=f"The folder of results (default: {RESULTS})."),
    ] = None,
    name: Annotated[str, typer.Option(help="Whose the comparison is that is added.")] = "own",
    as_json: Json = False,
) -> None:
    """Show all results of a folder on one page: tasks x methods, with intervals, filters and links.

    `add` puts a comparison of your own beside them, marked with your name; a folder DIR that is not there is made.

    Examples:

        fedbalancer leaderboard

        fedbalancer leaderboard add runs/compare-har --name "Ann's lab"
    """
    from fedbalancer.leaderboard.own import add
    from fedbalancer.leaderboard.write import write

    given = list(words or [])
    adding = given[:1] == [ADD]
    if len(given) > (3 if adding else 1) or given == [ADD]:
        raise BadSetting("give a folder of results, or: add FOLDER [DIR]")
    results = Path(given[-1]) if len(given) == (3 if adding else 1) else RESULTS
    if adding:
        place = add(Path(given[1]), results, name)
        typer.echo(f"added: {place}; remove that folder to take it back", err=True)
    finish(write(results), as_json)


def finish(written: Written, as_json: bool) -> None:
    """Say what there is, and where."""
    if as_json:
        typer.echo(json.dumps([vars(entry) for entry in written.entries]))
        return
    tasks, own = {entry.task for entry in written.entries}, {entry.whose for entry in written.entries if entry.whose}
    methods = {entry.method for entry in written.entries}
    whose = f", with entries of {', '.join(sorted(own))}" if own else ""
    typer.echo(f"{len(written.entries)} entries: {len(methods)} methods on {len(tasks)} tasks{whose}")
    typer.echo(f"leaderboard: {written.page}")
