"""`fedbalancer bench`: how fast this machine trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.options import Json

STEPS_A_TASK = 6
"""Paths that are timed for every task: for the bar only."""


def bench(
    tasks: Annotated[
        str | None,
        typer.Option(help="Comma-separated tasks (default: femnist, har, celeba, shakespeare, reddit, watch)."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.01, help="About how long one timing of the naive loop takes.")] = 1.0,
    workers: Annotated[
        int | None, typer.Option(min=2, help="Processes of the pool (default: one per core, at least 2).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, bench.md and bench.png.")] = Path("runs/bench"),
    as_json: Json = False,
) -> None:
    """Measure local training on the tasks' models: every engine path, the naive loop and the limit by arithmetic.

    The models have their published size, the data are random: no data set is needed. Repeats are interleaved. Ratios
    are of what a run does on all cores (the last path) to the naive loop: a module copy, a DataLoader and an optimizer
    for every client, with torch on all cores. The default takes two to three minutes; nothing else should run.

    Examples:

        fedbalancer bench

        fedbalancer bench --tasks femnist,har --repeats 7 --seconds 3

        fedbalancer bench --tasks watch --repeats 1 --seconds 0.1 --json
    """
    from fedbalancer.bench.run import run_bench
    from fedbalancer.bench.tasks import SHAPES, known

    names = known(part.strip() for part in tasks.split(",") if part.strip()) if tasks else tuple(SHAPES)
    with progress(len(names) * STEPS_A_TASK * (repeats + 1) + 2) as tell:
        result = run_bench(names, repeats=repeats, seconds=seconds, workers=workers, tell=tell)
    result.write(out)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
        return
    from rich.console import Console

    Console().print(result.table())
    for note in result.notes():
        typer.echo(note)
    typer.echo(f"kept in {out}")


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr that is told what is next; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with Progress(console=console, transient=True) as bar:
        whole = bar.add_task("starting", total=steps)
        yield lambda text: bar.update(whole, advance=1, description=text)
