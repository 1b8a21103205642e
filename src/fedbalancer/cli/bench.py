"""`fedbalancer bench`: measure how fast this machine trains, and how methods withstand attackers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.cli.options import Json, parse_seeds
from fedbalancer.core.errors import BadSetting

bench = typer.Typer(cls=Commands, invoke_without_command=True)

STEPS_PER_TASK = 6
"""Number of paths per task, for the progress bar."""


@bench.callback()
@with_clear_errors
def speed(
    context: typer.Context,
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

    `fedbalancer bench attacks` measures robustness instead.
    """
    if context.invoked_subcommand is not None:
        return
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


@bench.command("attacks")
@with_clear_errors
def attacks(
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated methods. Default: canter and fedbalancer, each with and without +robust."),
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="Name of an attack (`fedbalancer list attacks`); repeatable. Default: all.")
    ] = None,
    attackers: Annotated[str, typer.Option(help="Comma-separated numbers of attackers.")] = "20,10",
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a range such as 10..19.")] = "5",
    rounds: Annotated[str, typer.Option(help="Comma-separated numbers of rounds after which to measure.")] = "50,100",
    task: Annotated[str, typer.Option(help="Name of a task.")] = "synthetic",
    users: Annotated[int | None, typer.Option(min=2, help="Number of clients.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder for attacks.csv and README.md.")] = Path("runs/robustness"),
    as_json: Json = False,
) -> None:
    """Measure how much of its accuracy each method keeps under each attack.

    Runs that attacks.csv already has are not repeated, so an interrupted matrix continues. The default takes about half
    an hour of one core; `fedbalancer list attacks` describes the attacks.

    Examples:

        fedbalancer bench attacks

        fedbalancer bench attacks --attack quiet-flip --attack step-replay --attackers 20 --seeds 2 --rounds 50

        fedbalancer bench attacks --methods canter+robust,oort+robust --out docs/results/robustness
    """
    from fedbalancer.methods.names import canonical_name, split_names
    from fedbalancer.paper.robustness import LIBRARY, METHODS, list_cases, measure_matrix, write_page

    names = [canonical_name(name) for name in split_names(methods)] if methods else list(METHODS)
    counts, after = (_positive_numbers(text, option) for text, option in ((attackers, "attackers"), (rounds, "rounds")))
    cases = list_cases(names, attack or LIBRARY, counts, parse_seeds(seeds))
    rows = measure_matrix(out, cases, tuple(sorted(after)), task, users, lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    typer.echo(write_page(rows))
    typer.echo(f"written to {out}")


def _positive_numbers(text: str, option: str) -> list[int]:
    """Parse comma-separated whole numbers above 0."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BadSetting(f"--{option} {text!r} must be whole numbers > 0, separated by commas, as in 10,20")
    return [int(part) for part in parts]


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
