"""`fedbalancer run`: one method on one task."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli import options
from fedbalancer.cli.tasks import announce, folder_name, is_file, label, say_prepared, say_surprises, timed
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.result import RunResult


def run(
    task: Annotated[
        str,
        typer.Argument(
            help="Name of a task (`fedbalancer list tasks`), TOML file, or package.module:function.",
            autocompletion=options.known_tasks,
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            "-m",
            help="Name of a method (default: fedbalancer).",
            autocompletion=options.known_methods,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    scale: options.Scale = "small",
    users: options.Users = None,
    variant: options.Variant = None,
    rounds: options.Rounds = None,
    budget: Annotated[float | None, typer.Option(help="Simulated seconds to run for, instead of rounds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder (default: runs/TASK-METHOD-seed-N).")] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(help="Ask no client again whose metadata would go beyond it (`fedbalancer privacy plan`)."),
    ] = None,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    executor: options.Executor = None,
    address: options.Address = None,
    backend: options.Backend = "fast",
    device: options.Device = "cpu",
    timing_only: Annotated[bool, typer.Option("--timing-only", help="Run the clock without training.")] = False,
    track: options.Track = None,
    attack: options.Attacks = None,
    set_: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Run one method on one task and keep everything in a run folder.

    Examples:

        fedbalancer run watch --method fedbalancer --seed 0

        fedbalancer run synthetic -m fedavg+1t --users 10000 --rounds 1000 --timing-only --set clients_per_round=100

        fedbalancer run watch --method 'fedbalancer[w=5,p=.75]'

        fedbalancer run my_task.toml --method fedbalancer

        fedbalancer run synthetic -m fedbalancer+robust --attack metadata-liar:10 --attack 'update-flip(factor=100):5'

        fedbalancer run femnist --scale paper --executor ray --address auto
    """
    from fedbalancer.experiments.display import run_display
    from fedbalancer.experiments.execute import execute
    from fedbalancer.experiments.executor_cache import ExecutorCache
    from fedbalancer.experiments.simulation import check_settings
    from fedbalancer.experiments.spec import RunSpec
    from fedbalancer.experiments.surprises import absent_kernels, surprises_of_run
    from fedbalancer.experiments.trust import code_of, remember
    from fedbalancer.experiments.variants import named_in_full
    from fedbalancer.simulation.executors import Resources

    settings = options.overrides(config, set_, attack)
    if epsilon_budget is not None:
        settings["epsilon_budget"] = epsilon_budget
    (name,) = options.methods_of(config, method, "method", ["fedbalancer"])
    spec = RunSpec(
        task=task, method=name, seed=seed, scale=scale, users=users, variant=variant, settings=settings,
        rounds=rounds, budget_s=budget, timing_only=timing_only, backend=backend, device=device,
    )  # fmt: skip
    spec, _ = named_in_full(spec, [spec.method])
    executors = ExecutorCache(Resources(workers=workers, executor=executor, address=address, track=tuple(track or ())))
    folder = out if out is not None else Path("runs") / f"{folder_name(task)}-{spec.method_name}-seed-{seed}"
    prepared, seconds = timed(spec.load_task)
    check_settings([spec], prepared)
    if is_file(task):
        announce(prepared, {**settings, **({"rounds": rounds} if rounds else {})}, trained=not timing_only)
    say_prepared(prepared, seconds)
    say_surprises(surprises_of_run(spec, prepared))
    title = f"{folder_name(task)} {spec.method_name} seed {seed}"
    remember(code_of(spec))
    with StopFlag() as stop, executors, run_display(title) as progress:
        result = execute(
            spec, folder, task=prepared, overwrite=overwrite, executors=executors, progress=progress, stopped=stop
        )
    say_surprises(absent_kernels(spec))
    finish(result, folder, as_json)


def finish(result: RunResult, folder: Path, as_json: bool) -> None:
    """Say how a run ended."""
    from fedbalancer.store import read_manifest

    described = read_manifest(folder)
    task = described["task"]
    clock_s = float(result.rounds["end_s"][-1]) if len(result.rounds) else 0.0
    accuracy = result.accuracy if len(result.evals) else None
    if as_json:
        known = {"task": task["name"], "variant": task["variant"], "method": described["method"]}
        values = {"status": result.status, "rounds": len(result.rounds), "clock_s": clock_s, "accuracy": accuracy}
        typer.echo(json.dumps({**known, "seed": described["seed"], **values, "out": str(folder)}))
    elif result.status == "done":
        reached = "" if accuracy is None else f", accuracy {accuracy:.3f}"
        ran = f"{label(task['name'], task['variant'])}, {described['method']}: {len(result.rounds)} rounds"
        typer.echo(f"done: {ran}, {clock_s:,.0f} simulated seconds{reached}; kept in {folder}")
    if result.status == "stopped":
        typer.echo(
            f"stopped after round {len(result.rounds)}; to go on: fedbalancer resume {shlex.quote(str(folder))}",
            err=True,
        )
        raise typer.Exit(EXIT_INTERRUPTED)
