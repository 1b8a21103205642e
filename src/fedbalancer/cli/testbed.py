"""`fedbalancer testbed`: methods on real Flower processes that emulate the paper's phones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbalancer.cli.options import Assignments, Config, Json, Overwrite, Rounds, Scale, overrides
from fedbalancer.cli.output import show
from fedbalancer.core.processes import EXIT_INTERRUPTED, StopFlag

if TYPE_CHECKING:
    from fedbalancer.paper.testbed.bed import BedResult

METHODS = "fedavg+1t,fedavg+wfa,prox+1t,fedbalancer"

Clients = Annotated[int, typer.Option(help="Number of phones; each is a SuperNode with the data of one client.")]
Speed = Annotated[float, typer.Option(help="Maximum phone seconds per second; the phones wait for a slower machine.")]
Seed = Annotated[
    int,
    typer.Option(help="Seed of everything random; also selects one of the three recorded sessions (seed modulo 3)."),
]
PhonesFile = Annotated[
    Path | None,
    typer.Option(
        help="File of the recorded phones. Default: the one in the data folder; without it, the device model."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder. Default: runs/testbed-TASK.")]
Netns = Annotated[
    bool, typer.Option("--netns", help="Run each phone in a network namespace with its bandwidth (Linux, root).")
]
Runtime = Annotated[str, typer.Option(help="Training runtime of the phones: torch, litert or executorch.")]
ModelFile = Annotated[
    Path | None,
    typer.Option(
        help="File of `fedbalancer export`, for --runtime litert or executorch. Default: the task's model is exported."
    ),
]


class GentleStop(StopFlag):
    """Stops all processes of the test bed on Ctrl-C, however often it is pressed."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        os.write(2, b"\nstopping all processes of the test bed\n")


def bed(
    clients: Clients = 21,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "--methods", "-m", help=f"Comma-separated methods; repeatable. Default: {METHODS}."),
    ] = None,
    speed: Speed = 20.0,
    rounds: Rounds = None,
    seed: Seed = 0,
    task: Annotated[str, typer.Option(help="Name of a task; `watch` needs no data.")] = "har",
    scale: Scale = "paper",
    phones: PhonesFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Do not wait for this machine; its delays show in the times.")
    ] = False,
    netns: Netns = False,
    runtime: Runtime = "torch",
    model: ModelFile = None,
    set_: Assignments = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Run methods on emulated phones: real Flower processes, each as slow as a phone of the paper's test bed.

    Times are phone seconds: this machine's seconds times the speed, without the time that the phones waited for this
    machine. The folder is that of a comparison.

    Examples:

        fedbalancer testbed --clients 21 --method fedavg+1t,fedbalancer

        fedbalancer testbed --task watch --clients 4 --rounds 5 --speed 20

        fedbalancer testbed --runtime litert --model har.tflite --clients 21
    """
    from fedbalancer.methods.names import canonical_name, split_names

    names = tuple(canonical_name(name) for name in split_names(",".join(method or [METHODS])))
    folder = out if out is not None else Path("runs") / f"testbed-{task}"
    result = run(
        folder, phones, overwrite, methods=names, clients=clients, speed=speed, rounds=rounds, seed=seed, task=task,
        scale=scale, overrides=overrides(config, set_), netns=netns, real_time=real_time, runtime=runtime,
        model="" if model is None else str(model.absolute()),
    )  # fmt: skip
    finish(result, as_json)


def run(folder: Path, phones: Path | None, overwrite: bool, **options: Any) -> BedResult:
    """Check the plan and run the test bed, with progress on stderr.

    Args:
        folder: The folder of the test bed.
        phones: File of the recorded phones.
        overwrite: Replace a test bed that exists in the folder.
        **options: The fields of `BedPlan`.
    """
    from fedbalancer.experiments.progress import comparison_display
    from fedbalancer.paper.testbed.bed import run_bed
    from fedbalancer.paper.testbed.netns import check, has_netem
    from fedbalancer.paper.testbed.plan import BedPlan

    plan = BedPlan.make(folder, phones, **options)
    if not plan.phones:
        typer.echo("note: there is no file of recorded phones; using the device model", err=True)
    if plan.netns:
        check()
        if not has_netem():
            typer.echo("note: this kernel has no netem; the phones have their bandwidth, but no delay", err=True)
    with GentleStop() as stop, comparison_display(plan.methods, [plan.seed]) as listen:
        return run_bed(plan, overwrite=overwrite, listen=listen, stopped=stop)


def finish(result: BedResult, as_json: bool) -> None:
    """Print the table, the error of the simulated twin, the lag of this machine, and the path of the report."""
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        show(result.comparison, result.folder / "table.md")
        for name, twin in result.twins.items():
            typer.echo(f"{name}: {twin.words()}")
            typer.echo(f"{name}: this machine was {result.lags[name].words()}")
        typer.echo(f"report: {result.folder / 'report.html'}")
    if result.stopped:
        typer.echo("stopped; all processes of the test bed have ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
