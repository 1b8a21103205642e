"""`fedbalancer compare`: methods x seeds on one task, then the table and the report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedbalancer.cli import options
from fedbalancer.cli.demo import DEMO, Usual
from fedbalancer.cli.errors import EXIT_USER_ERROR
from fedbalancer.cli.shown import show
from fedbalancer.cli.tasks import announce, folder_name, is_file, say_prepared, say_surprises, timed
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.compare import ComparisonRun

T = TypeVar("T")


def compare(
    task: Annotated[
        str | None,
        typer.Argument(
            help="Name of a task, or TOML file; without one: the demo, on data that come along.",
            autocompletion=options.known_tasks,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            "-m",
            help="Comma-separated methods; repeatable (default: FedBalancer and the paper's baselines).",
            autocompletion=options.known_methods,
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds, or which: 5, 10..19 or 4,7 (default: 3; of the demo: 8).")
    ] = None,
    scale: options.Scale = "small",
    users: options.Users = None,
    variant: options.Variant = None,
    rounds: options.Rounds = None,
    extend: Annotated[
        float | None,
        typer.Option(
            help="Budgets that a method may take to reach the target (default: 2; of the demo: 1, none over)."
        ),
    ] = None,
    rule: options.Rule = "fair",
    target: options.Targets = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: runs/compare-TASK).")] = None,
    overwrite: options.Overwrite = False,
    jobs: options.Jobs = None,
    workers: options.Workers = None,
    executor: options.Executor = None,
    address: options.Address = None,
    backend: options.Backend = "fast",
    device: options.Device = "cpu",
    track: options.Track = None,
    attack: options.Attacks = None,
    set_: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Compare methods by time-to-accuracy and final accuracy, over seeds.

    Budget: FedAvg+1T's simulated clock after the task's rounds. Target: final accuracy of the best FedAvg variant. By
    the rule fair all methods are evaluated on one grid of simulated seconds, and a target must be held.

    Examples:

        fedbalancer compare

        fedbalancer compare watch --methods fedavg+1t,prox+1t,fedbalancer --seeds 5

        fedbalancer compare watch --methods 'fedavg+1t,fedavg[deadline=.5T],fedbalancer[w=5,p=.75]'

        fedbalancer compare my_task.toml
    """
    from fedbalancer.experiments.compare import DEFAULT_METHODS, run_comparison
    from fedbalancer.experiments.display import comparison_display
    from fedbalancer.experiments.plan import ComparisonPlan
    from fedbalancer.experiments.spec import RunSpec
    from fedbalancer.experiments.surprises import absent_kernels, surprises_of_plan
    from fedbalancer.experiments.variants import named_in_full
    from fedbalancer.simulation.executors import Resources
    from fedbalancer.store.comparison import TARGETS

    folder = out if out is not None else Path("runs") / f"compare-{folder_name(task or 'demo')}"
    usual = DEMO if task is None else Usual(task, users, rounds, seeds=3, extend=2.0, methods=DEFAULT_METHODS)
    names = options.methods_of(config, methods, "methods", usual.methods)
    task, users, rounds = usual.task, _told(users, usual.users), _told(rounds, usual.rounds)
    numbers, extend = options.seeds_of(_told(seeds, str(usual.seeds))), _told(extend, usual.extend)
    base = RunSpec(
        task=task, scale=scale, users=users, variant=variant, settings=options.overrides(config, set_, attack),
        rounds=rounds,
        backend=backend, device=device,
    )  # fmt: skip
    base, named = named_in_full(base, names)
    shares = options.targets(target) or TARGETS
    plan, seconds = timed(lambda: ComparisonPlan.make(base, named, numbers, extend, rule, shares))
    resources = Resources(workers=workers, executor=executor, address=address, track=tuple(track or ()))
    if is_file(task):
        announce(plan.task, plan.base.overrides)
    say_prepared(plan.task, seconds)
    say_surprises(surprises_of_plan(plan))
    with StopFlag() as stop, comparison_display(plan.method_names, list(plan.seeds)) as listen:
        result = run_comparison(
            plan, folder, overwrite=overwrite, jobs=jobs, resources=resources, listen=listen, stopped=stop
        )
    say_surprises(absent_kernels(plan.base))
    finish(result, folder, as_json)


def _told(asked: T | None, usual: T) -> T:
    """What was asked for, be it 0, or else the usual."""
    return usual if asked is None else asked


def finish(result: ComparisonRun, folder: Path, as_json: bool) -> None:
    """Print the table, where the report is, and what failed."""
    if as_json:
        typer.echo(json.dumps(result.comparison.to_json()))
    else:
        show(result.comparison, folder / "table.md")
        typer.echo(f"report: {folder / 'report.html'}")
    for event in result.failed:
        typer.echo(f"error: {event.key[0]} seed {event.key[1]} failed: {event.why}", err=True)
    if result.stopped:
        typer.echo(f"stopped; to go on: fedbalancer resume {shlex.quote(str(folder))}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if result.failed:
        raise typer.Exit(EXIT_USER_ERROR)
    result.scored()
