"""`fedbalancer resume`: go on with a run or a comparison; code of others that its folder names is asked about first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbalancer.cli import compare as compare_command
from fedbalancer.cli import options
from fedbalancer.cli import run as run_command
from fedbalancer.core.processes import StopFlag


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run or comparison.")],
    workers: options.Workers = None,
    executor: options.Executor = None,
    address: options.Address = None,
    backend: options.SameBackend = None,
    device: options.SameDevice = None,
    jobs: options.Jobs = None,
    track: options.Track = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that the folder names without asking.")] = False,
    as_json: options.Json = False,
) -> None:
    """Go on with a run or a comparison that was stopped or killed; it ends in the same bytes as one left alone.

    Example:

        fedbalancer resume runs/compare-watch
    """
    from fedbalancer.experiments.compare import run_comparison
    from fedbalancer.experiments.display import comparison_display, run_display
    from fedbalancer.experiments.execute import resume as resume_run
    from fedbalancer.experiments.plan import ComparisonPlan
    from fedbalancer.experiments.trust import EVERYTHING, leave_out_working_folder
    from fedbalancer.simulation.executors import Resources
    from fedbalancer.store import COMPARISON

    leave_out_working_folder()
    trust = trust or _asked(folder)
    if (folder / COMPARISON).is_file():
        plan = ComparisonPlan.read(folder, EVERYTHING if trust else (), backend=backend, device=device)
        resources = Resources(workers=workers, executor=executor, address=address, track=tuple(track or ()))
        with StopFlag() as stop, comparison_display(plan.method_names, plan.seeds) as listen:
            result = run_comparison(
                plan, folder, resumed=True, jobs=jobs, resources=resources, listen=listen, stopped=stop
            )
        compare_command.finish(result, folder, as_json)
        return
    with StopFlag() as stop, run_display(str(folder)) as progress:
        single = resume_run(
            folder, workers=workers, executor=executor, address=address, backend=backend, device=device,
            track=track or (), trust=trust, progress=progress, stopped=stop,
        )  # fmt: skip
    run_command.finish(single, folder, as_json)


def _asked(folder: Path) -> bool:
    """Whether the user, shown what code going on would import, says to run it. Where nobody can answer: no."""
    from fedbalancer.experiments.spec import RunSpec, from_manifest
    from fedbalancer.experiments.trust import code_of, untrusted
    from fedbalancer.store import COMPARISON, ComparisonFile, read_manifest

    if (folder / COMPARISON).is_file():
        file = ComparisonFile.read(folder)
        code = code_of(RunSpec.from_json(file.spec), file.methods)
    else:
        code = code_of(from_manifest(read_manifest(folder)))
    unknown = untrusted(code)
    if not unknown or not sys.stdin.isatty():
        return False
    typer.echo("Going on would run code that this folder names, and that was not started from here:", err=True)
    for each in unknown:
        typer.echo(f"  {each}", err=True)
    return typer.confirm("Run it?", default=False, err=True)
