"""`fedbalancer resume`: go on with a run or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import compare as compare_command
from fedbalancer.cli import options
from fedbalancer.cli import run as run_command
from fedbalancer.cli.display import comparison_display, run_display
from fedbalancer.processes import StopFlag


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run or comparison.")],
    workers: options.Workers = None,
    executor: options.Executor = None,
    address: options.Address = None,
    engine: options.SameEngine = None,
    device: options.SameDevice = None,
    jobs: options.Jobs = None,
    track: options.Track = None,
    as_json: options.Json = False,
) -> None:
    """Go on with a run or a comparison that was stopped or killed; it ends in the same bytes as one left alone.

    Example:

        fedbalancer resume runs/compare-watch
    """
    from fedbalancer.engine.executors import Resources
    from fedbalancer.runs.compare import run_comparison
    from fedbalancer.runs.execute import resume as resume_run
    from fedbalancer.runs.plan import ComparisonPlan
    from fedbalancer.store import COMPARISON

    if (folder / COMPARISON).is_file():
        plan = ComparisonPlan.read(folder, engine=engine, device=device)
        resources = Resources(workers=workers, executor=executor, address=address, track=tuple(track or ()))
        with StopFlag() as stop, comparison_display(plan.method_names, plan.seeds) as listen:
            result = run_comparison(
                plan, folder, resumed=True, jobs=jobs, resources=resources, listen=listen, stopped=stop
            )
        compare_command.finish(result, folder, as_json)
        return
    with StopFlag() as stop, run_display(str(folder)) as progress:
        single = resume_run(
            folder, workers=workers, executor=executor, address=address, engine=engine, device=device,
            track=track or (), progress=progress, stopped=stop,
        )  # fmt: skip
    run_command.finish(single, folder, as_json)
