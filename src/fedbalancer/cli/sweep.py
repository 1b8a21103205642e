"""`fedbalancer sweep`: search for the best settings of a method on a task."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbalancer.cli import options as shared
from fedbalancer.cli.output import folder_name, print_task
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.sweep.plan import SweepPlan
    from fedbalancer.experiments.sweep.results import Sweep
    from fedbalancer.experiments.sweep.search import Event, Listen

ROWS = 15
"""Number of rows of the table in the terminal."""


@shared.with_options(shared.RUN_OPTIONS)
def sweep(
    task: Annotated[str, typer.Argument(help="Name of a task, or TOML file.", autocompletion=shared.complete_task)],
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings to vary: key=a,b,c or key=low..high[:log], paper (the paper's grid), or FILE.toml; "
            "repeatable. Required."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="Objective: time-to-accuracy, or a metric of the task.")
    ] = "time-to-accuracy",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "--methods", "-m", help="Method to vary. Default: fedbalancer."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials. Default: the whole grid, or 20.")] = None,
    sampler: Annotated[
        str | None, typer.Option(help="Sampler: grid, tpe or random. Default: grid for lists of values, otherwise tpe.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of seeds per trial.")] = 1,
    target: Annotated[float, typer.Option(help="Target, as a share of FedAvg+1T's final metric.")] = 0.95,
    prune: Annotated[bool, typer.Option(help="Stop trials whose metric is worse than the median.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/sweep-TASK.")] = None,
    overwrite: shared.Overwrite = False,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
    **options: Any,
) -> None:
    """Search for the settings with which a method performs best on a task.

    The budget of every trial is FedAvg+1T's simulated time for the task's rounds. The same command continues a sweep
    that was stopped; a higher --trials extends one that is done. The best of many trials on few seeds is partly luck:
    compare it on other seeds.

    Examples:

        fedbalancer sweep har --space paper

        fedbalancer sweep watch --space w=5,20 --space clients.alpha=0.1..10:log --trials 40 --seeds 2
    """
    from fedbalancer.experiments.spec import RunSpec
    from fedbalancer.experiments.sweep.plan import SweepPlan
    from fedbalancer.experiments.sweep.search import import_optuna, run_sweep

    import_optuna()
    (name,) = shared.select_methods(options["config"], method, "method", ["fedbalancer"])
    base = RunSpec(task=task, method=name, **shared.run_options(options))
    begun_s = time.perf_counter()
    plan = SweepPlan.make(
        base, space or [], objective=objective, sampler=sampler, trials=trials, seeds=seeds, share=target
    )
    print_task(plan.comparison.task, time.perf_counter() - begun_s)
    folder = out if out is not None else Path("runs") / f"sweep-{folder_name(task)}"
    with StopFlag() as stop, sweep_display(plan.trials) as listen:
        result = run_sweep(plan, folder, jobs=jobs, prune=prune, overwrite=overwrite, listen=listen, stopped=stop)
    finish(plan, result, folder, task, as_json)


def finish(plan: SweepPlan, result: Sweep, folder: Path, task: str, as_json: bool) -> None:
    """Print the table, and the command that compares the best method on other seeds.

    Args:
        plan: The sweep.
        result: Its trials.
        folder: Its folder.
        task: The task as it was typed.
        as_json: Print the trials as JSON.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedbalancer.experiments.sweep.results import rows, value_caption

    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        table = Table("Method", "Value", "State", caption=value_caption(plan), caption_justify="left")
        for row in rows(result)[:ROWS]:
            table.add_row(*map(Text, row))
        Console().print(table)
        typer.echo(f"all {len(result.trials)} trials: {folder / 'table.md'}, {folder / 'figures' / 'trials.png'}")
        if result.best is not None:
            methods = shlex.quote(f"fedavg+1t,{plan.space.method},{result.best.method}")
            typer.echo(f"best: {result.best.method}")
            first = max(plan.seeds) + 1
            others = f"--seeds {first}..{first + 4}"
            typer.echo(f"on other seeds: fedbalancer compare {shlex.quote(task)} --methods {methods} {others}")
    if result.stopped:
        typer.echo("stopped; the same command continues the sweep", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)


@contextmanager
def sweep_display(trials: int) -> Iterator[Listen]:
    """Show a bar for all trials and one for each active trial; without a terminal, a line per finished trial."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        all_trials, active = bars.add_task("trials", total=trials), {}

        def listen(event: Event) -> None:
            if event.kind == "running":
                if event.number not in active:
                    active[event.number] = bars.add_task(event.method, total=1.0)
                bars.update(active[event.number], completed=event.share)
                return
            if event.number in active:
                bars.remove_task(active.pop(event.number))
            bars.advance(all_trials)
            console.print(f"trial {event.number}, {event.method}: {event.text}", markup=False, highlight=False)

        yield listen
