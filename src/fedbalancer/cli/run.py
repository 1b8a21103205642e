"""`fedbalancer run`: one method on one task."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbalancer.cli import options as shared
from fedbalancer.cli.output import folder_name, label
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.execute import RunResult


@shared.with_options(shared.RUN_OPTIONS, shared.EXECUTION_OPTIONS)
def run(
    task: Annotated[
        str,
        typer.Argument(
            help="Name of a task (`fedbalancer list tasks`), TOML file, or package.module:function.",
            autocompletion=shared.complete_task,
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            "-m",
            help="Name of a method (`fedbalancer list methods`). Default: fedbalancer.",
            autocompletion=shared.complete_methods,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    budget: Annotated[
        float | None, typer.Option(help="Simulated seconds to run for. Default: a number of rounds.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Value of the main metric at which the run stops, such as 0.8. Default: none.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/TASK-METHOD-seed-N.")] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(
            help="Largest epsilon of a client's metadata; a client that would exceed it is not selected again. "
            "Default: none."
        ),
    ] = None,
    overwrite: shared.Overwrite = False,
    timing_only: Annotated[bool, typer.Option("--timing-only", help="Simulate the clock without training.")] = False,
    as_json: shared.Json = False,
    **options: Any,
) -> None:
    """Run one method on one task and write a run folder.

    Examples:

        fedbalancer run watch --method fedbalancer --seed 0

        fedbalancer run synthetic -m fedavg+1t --users 10000 --rounds 1000 --timing-only --set clients_per_round=100

        fedbalancer run watch --method 'fedbalancer[w=5,p=.75]'

        fedbalancer run my_task.toml --method fedbalancer --target 0.8

        fedbalancer run synthetic -m fedbalancer+robust --attack metadata-liar:10 --attack 'update-flip(factor=100):5'

        fedbalancer run femnist --scale paper --executor ray --address auto
    """
    import fedbalancer as fb
    from fedbalancer.cli.observer import CommandLine
    from fedbalancer.experiments.spec import full_method_name

    chosen = shared.run_options(options)
    if epsilon_budget is not None:
        chosen["settings"]["epsilon_budget"] = epsilon_budget
    (name,) = shared.select_methods(options["config"], method, "method", ["fedbalancer"])
    full_name = full_method_name(name, chosen["settings"])
    folder = out if out is not None else Path("runs") / f"{folder_name(task)}-{full_name}-seed-{seed}"
    with StopFlag() as stop:
        result = fb.run(
            task, name, seed, budget_s=budget, target=target, timing_only=timing_only, out=folder, overwrite=overwrite,
            progress=True, observer=CommandLine(task, chosen, trained=not timing_only), stopped=stop, **chosen,
        )  # fmt: skip
    finish(result, folder, as_json)


def finish(result: RunResult, folder: Path, as_json: bool) -> None:
    """Print how a run ended. Exits with code 130 if it was stopped.

    Args:
        result: The result of the run.
        folder: The run folder.
        as_json: Print the result as JSON.
    """
    from fedbalancer.store import read_manifest

    manifest = read_manifest(folder)
    task = manifest["task"]
    value = result.value if math.isfinite(result.value) else None
    if as_json:
        names = {"task": task["name"], "variant": task["variant"], "method": manifest["method"]}
        values = {
            "rounds": len(result.rounds),
            "clock_s": result.clock_s,
            result.metric.name: value,
            "out": str(folder),
        }
        typer.echo(json.dumps({**names, "seed": manifest["seed"], "status": result.status, **values}))
    elif result.status == "done":
        reached = "" if value is None else f", {result.metric.title} {value:.3f}"
        name = f"{label(task['name'], task['variant'])}, {manifest['method']}"
        seconds = f"{result.clock_s:,.0f} simulated seconds"
        why = f" ({manifest['why']})" if manifest.get("why") else ""
        typer.echo(f"done{why}: {name}: {len(result.rounds)} rounds, {seconds}{reached}; saved in {folder}")
    if result.status == "stopped":
        command = f"fedbalancer resume {shlex.quote(str(folder))}"
        typer.echo(f"stopped after round {len(result.rounds)}; to continue: {command}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
