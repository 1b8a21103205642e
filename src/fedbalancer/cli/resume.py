"""`fedbalancer resume`: continue a run or a comparison. Asks before it runs code of others that the folder names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbalancer.cli import options as shared
from fedbalancer.cli.run import finish
from fedbalancer.core.processes import StopFlag


@shared.with_options(shared.EXECUTION_OPTIONS)
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or a comparison.")],
    backend: shared.SameBackend = None,
    device: shared.SameDevice = None,
    jobs: shared.Jobs = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that the folder names without asking.")] = False,
    as_json: shared.Json = False,
    **options: Any,
) -> None:
    """Continue a run or a comparison that was stopped or killed. The result is the same as without the interruption.

    Example:

        fedbalancer resume runs/compare-watch
    """
    import fedbalancer as fb
    from fedbalancer.cli.observer import print_comparison
    from fedbalancer.experiments.comparison import run_comparison
    from fedbalancer.experiments.plan import ComparisonPlan
    from fedbalancer.experiments.progress import comparison_display, run_display
    from fedbalancer.experiments.trust import EVERYTHING, leave_out_working_folder
    from fedbalancer.simulation.executors import Resources
    from fedbalancer.store import COMPARISON

    leave_out_working_folder()
    trust = trust or _confirm_code(folder)
    execution = {**options, "track": tuple(options["track"] or ())}
    if (folder / COMPARISON).is_file():
        plan = ComparisonPlan.read(folder, EVERYTHING if trust else (), backend=backend, device=device)
        resources = Resources(**execution)
        with StopFlag() as stop, comparison_display(plan.method_names, plan.seeds) as listen:
            outcome = run_comparison(
                plan, folder, resumed=True, jobs=jobs, resources=resources, listen=listen, stopped=stop
            )
        print_comparison(outcome, folder, as_json)
        outcome.scores_or_error()
        return
    with StopFlag() as stop, run_display(str(folder)) as progress:
        result = fb.resume(
            folder, backend=backend, device=device, trust=trust, progress=progress, stopped=stop, **execution
        )
    finish(result, folder, as_json)


def _confirm_code(folder: Path) -> bool:
    """Show code of others that the folder names, and ask whether to run it. Without a terminal the answer is no."""
    from fedbalancer.experiments.spec import RunSpec, from_manifest
    from fedbalancer.experiments.trust import code_of, find_untrusted
    from fedbalancer.store import COMPARISON, ComparisonFile, read_manifest

    if (folder / COMPARISON).is_file():
        file = ComparisonFile.read(folder)
        code = code_of(RunSpec.from_json(file.spec), file.methods)
    else:
        code = code_of(from_manifest(read_manifest(folder)))
    unknown = find_untrusted(code)
    if not unknown or not sys.stdin.isatty():
        return False
    typer.echo("This folder names code with which you have not started a run on this machine:", err=True)
    for each in unknown:
        typer.echo(f"  {each}", err=True)
    return typer.confirm("Run it?", default=False, err=True)
