"""`fedbalancer paper`: the paper's tables and figures, made anew."""

from __future__ import annotations

from pathlib import Path

import typer

from fedbalancer.cli.errors import with_clear_errors
from fedbalancer.cli.options import Json, Overwrite, Rounds
from fedbalancer.cli.testbed import Out, PhonesFile, Seed, Speed, finish, run

paper = typer.Typer(help="The paper's tables and figures, made anew.", no_args_is_help=True)


def table5(
    speed: Speed = 20.0,
    rounds: Rounds = None,
    seed: Seed = 0,
    phones: PhonesFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Table 5: all of its methods on a test bed of 21 emulated phones.

    Example:

        fedbalancer paper table5 --rounds 50
    """
    from fedbalancer.testbed.table5 import METHODS, write_table

    folder = out if out is not None else Path("runs") / "paper-table5"
    result = run(folder, phones, overwrite, methods=METHODS, clients=21, speed=speed, rounds=rounds, seed=seed)
    table = write_table(result.comparison, folder)
    if not as_json:
        typer.echo(table.read_text(encoding="utf-8"))
    finish(result, as_json)


paper.command("table5")(with_clear_errors(table5))
