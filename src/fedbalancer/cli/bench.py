"""`fedbalancer bench`: measure how fast this machine trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.options import Json

STEPS_PER_TASK = 6
"""Number of paths per task, for the progress bar."""


def bench(
    tasks: Annotated[
        str | None,
        typer.Option(help="Comma-separated tasks. Default: femnist, har, celeba, shakespeare, reddit, watch."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timings per path.")] = 3,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Approximate seconds of one timing of the naive loop.")
    ] = 1.0,
    workers: Annotated[
        int | None, typer.Option(min=2, help="Processes of the pool. Default: one per core, at least 2.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, bench.md and bench.png.")] = Path("runs/bench"),
    as_json: Json = False,
) -> None:
    """Measure local training on the tasks' models: every training path, a naive loop and the arithmetic limit.

    The models have their published size and the data are random, so no data set is needed. Repeats are interleaved.
    Ratios compare the default path of a run on all cores (the last one) with the naive loop: a module copy, a
    DataLoader and an optimizer for every client, with torch on all cores. The default takes two to three minutes;
    nothing else should run on the machine.

    Examples:

        fedbalancer bench

        fedbalancer bench --tasks femnist,har --repeats 7 --seconds 3

        fedbalancer bench --tasks watch --repeats 1 --seconds 0.1 --json
    """
    from fedbalancer.paper.bench.results import run_bench
    from fedbalancer.paper.bench.workloads import SHAPES, check_tasks

    names = check_tasks(part.strip() for part in tasks.split(",") if part.strip()) if tasks else tuple(SHAPES)
    with progress(len(names) * STEPS_PER_TASK * (repeats + 1) + 2) as report:
        result = run_bench(names, repeats=repeats, seconds=seconds, workers=workers, report=report)
    result.write(out)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
        return
    from rich.console import Console

    Console().print(result.table())
    for note in result.notes():
        typer.echo(note)
    typer.echo(f"written to {out}")


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr; nothing without a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with Progress(console=console, transient=True) as bar:
        whole = bar.add_task("starting", total=steps)
        yield lambda text: bar.update(whole, advance=1, description=text)
