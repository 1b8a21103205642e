"""`fedbalancer sweep`: which settings suit a method on a task."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.tasks import folder_name, say_prepared, timed
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.sweep.driver import Event, Listen
    from fedbalancer.experiments.sweep.plan import SweepPlan
    from fedbalancer.experiments.sweep.results import Sweep

SHOWN = 15
"""Rows of the table in the terminal."""


def sweep(
    task: Annotated[str, typer.Argument(help="Name of a task, or TOML file.")],
    space: Annotated[
        list[str] | None,
        typer.Option(help="What is varied: key=a,b,c or key=low..high[:log], paper (its grid), FILE.toml; repeatable."),
    ] = None,
    objective: Annotated[str, typer.Option(help="time-to-accuracy or accuracy.")] = "time-to-accuracy",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "--methods", "-m", help="The method whose settings are varied (fedbalancer)."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many (default: the whole grid, or 20).")] = None,
    sampler: Annotated[str | None, typer.Option(help="grid (default for lists), tpe or random.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of every trial: 0, 1, ...")] = 1,
    target: Annotated[float, typer.Option(help="Share of FedAvg+1T's final accuracy that is to be reached.")] = 0.95,
    prune: Annotated[bool, typer.Option(help="Give up trials that lag behind the median.")] = True,
    scale: options.Scale = "small",
    users: options.Users = None,
    variant: options.Variant = None,
    rounds: options.Rounds = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: runs/sweep-TASK).")] = None,
    overwrite: options.Overwrite = False,
    jobs: options.Jobs = None,
    backend: options.Backend = "fast",
    device: options.Device = "cpu",
    set_: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Search the settings with which a method does best on a task.

    Every trial gets the simulated time of FedAvg+1T's rounds. The same command goes on with a sweep that was stopped,
    and with a higher --trials adds to one that is done. The best of many trials on few seeds was lucky, too: compare
    it on other seeds.

    Examples:

        fedbalancer sweep har --space paper

        fedbalancer sweep watch --space w=5,20 --space clients.alpha=0.1..10:log --trials 40 --seeds 2
    """
    from fedbalancer.experiments.spec import RunSpec
    from fedbalancer.experiments.sweep.plan import SweepPlan
    from fedbalancer.experiments.sweep.run import run_sweep
    from fedbalancer.experiments.sweep.study import with_optuna

    with_optuna()
    (name,) = options.methods_of(config, method, "method", ["fedbalancer"])
    base = RunSpec(
        task=task, method=name, scale=scale, users=users, variant=variant, settings=options.overrides(config, set_),
        rounds=rounds, backend=backend, device=device,
    )  # fmt: skip
    plan, seconds = timed(
        lambda: SweepPlan.make(
            base, space or [], objective=objective, sampler=sampler, trials=trials, seeds=seeds, share=target
        )
    )
    say_prepared(plan.comparison.task, seconds)
    folder = out if out is not None else Path("runs") / f"sweep-{folder_name(task)}"
    with StopFlag() as stop, sweep_display(plan.trials) as listen:
        found = run_sweep(plan, folder, jobs=jobs, prune=prune, overwrite=overwrite, listen=listen, stopped=stop)
    finish(plan, found, folder, task, as_json)


def finish(plan: SweepPlan, found: Sweep, folder: Path, task: str, as_json: bool) -> None:
    """Print the table, and the best method ready to paste."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedbalancer.experiments.sweep.results import rows, rule

    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        table = Table("Method", "Value", "State", caption=rule(plan), caption_justify="left")
        for row in rows(found)[:SHOWN]:
            table.add_row(*map(Text, row))
        Console().print(table)
        typer.echo(f"all {len(found.trials)} trials: {folder / 'table.md'}, {folder / 'figures' / 'trials.png'}")
        if found.best is not None:
            methods = shlex.quote(f"fedavg+1t,{plan.space.method},{found.best.method}")
            typer.echo(f"best: {found.best.method}")
            first = max(plan.seeds) + 1
            others = f"--seeds {first}..{first + 4}"
            typer.echo(f"on other seeds: fedbalancer compare {shlex.quote(task)} --methods {methods} {others}")
    if found.stopped:
        typer.echo("stopped; the same command goes on with it", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)


@contextmanager
def sweep_display(trials: int) -> Iterator[Listen]:
    """A bar of all trials and one for each that goes on; without a terminal, a line for each that ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        whole, shown = bars.add_task("trials", total=trials), {}

        def listen(event: Event) -> None:
            if event.kind == "running":
                if event.number not in shown:
                    shown[event.number] = bars.add_task(event.method, total=1.0)
                bars.update(shown[event.number], completed=event.share)
                return
            if event.number in shown:
                bars.remove_task(shown.pop(event.number))
            bars.advance(whole)
            console.print(f"trial {event.number}, {event.method}: {event.words}", markup=False, highlight=False)

        yield listen
