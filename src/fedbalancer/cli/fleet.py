"""`fedbalancer fleet`: show a fleet, learn one from a run, and replay a run's rounds under other methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.cli.options import Json, complete_methods
from fedbalancer.core.errors import BadSetting

if TYPE_CHECKING:
    from fedbalancer.simulation.devices.fleet_check import FleetSummary

HEADINGS = ("min", "5%", "25%", "median", "75%", "95%", "max")
UNITS = {"batch_s": "s", "sample_s": "s", "down_mbit_s": "Mbit/s", "up_mbit_s": "Mbit/s"}
BAR_WIDTH = 40

HELP = "Show the devices of a fleet, learn them from a run, and replay its rounds."
SHADOWS = "fedavg+wfa,fedavg+1t,fedbalancer,canter"

fleet = typer.Typer(cls=Commands, help=HELP, no_args_is_help=True)
RunFolder = Annotated[Path, typer.Argument(help="Run folder of a simulated or Flower run; it may still be running.")]


def show(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file of a fleet.")],
    out: Annotated[Path | None, typer.Option(help="PNG or SVG file for a picture. Default: no picture.")] = None,
    as_json: Json = False,
) -> None:
    """Show how fast the devices of a fleet are, when they are online, and what is implausible.

    Examples:

        fedbalancer fleet show fleet.csv

        fedbalancer fleet show fleet.csv --out fleet.png --json
    """
    from fedbalancer.simulation.devices.fleet_check import summarise
    from fedbalancer.simulation.devices.fleet_files import read_fleet

    if out is not None and out.suffix.lower() not in (".png", ".svg"):
        raise BadSetting(f"--out {out} must end in .png or .svg")
    devices = read_fleet(file)
    summary = summarise(devices)
    if out is not None:
        from fedbalancer.reporting.plotting import plot_fleet, write_figure

        write_figure(plot_fleet(devices, file.name), out)
    if as_json:
        typer.echo(json.dumps({**_figures(summary), "picture": None if out is None else str(out)}))
        return
    _print(summary, file)
    if out is not None:
        typer.echo(f"picture: {out}")


def _figures(summary: FleetSummary) -> dict[str, Any]:
    """Return the shown figures as plain values."""
    return {
        "devices": summary.devices,
        "classes": summary.classes,
        "quantiles": {name: dict(zip(HEADINGS, values, strict=True)) for name, values in summary.quantiles.items()},
        "counts": summary.counts,
        "online_by_hour": summary.online_by_hour,
        "always_online": int((summary.online_share >= 1).sum()),
        "never_online": int((summary.online_share == 0).sum()),
        "mean_online_share": float(summary.online_share.mean()),
        "period_s": summary.period_s,
        "implausible": summary.problems,
    }


def _print(summary: FleetSummary, file: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    classes = ", ".join(f"{count:,} {name or 'without a class'}" for name, count in summary.classes.items())
    typer.echo(f"{file}: {summary.devices:,} devices ({classes})")
    table = Table("column", "unit", "devices", *HEADINGS, box=None, pad_edge=False)
    for name, values in summary.quantiles.items():
        table.add_row(name, UNITS[name], f"{summary.counts[name]:,}", *(f"{value:.4g}" for value in values))
    if summary.quantiles:
        console.print(table)
    missing = summary.devices - summary.counts.get("batch_s", 0) - summary.counts.get("sample_s", 0)
    if missing:
        typer.echo(f"{missing:,} devices without seconds have the latency of their class, or of a phone of the paper")
    if missing := summary.devices - summary.counts.get("down_mbit_s", 0):
        typer.echo(f"{missing:,} devices without a network have one of the paper's networks")
    _print_hours(summary)
    for problem in summary.problems:
        typer.echo(f"implausible: {problem}")
    if not summary.problems:
        typer.echo("nothing implausible")


def _print_hours(summary: FleetSummary) -> None:
    if (summary.online_share >= 1).all():
        typer.echo("all devices are always online")
        return
    days = summary.period_s / 86400
    period = f"{days:g} day{'s' * (days != 1)}"
    typer.echo(f"online on average {summary.online_share.mean():.1%} of the time; intervals repeat after {period}")
    typer.echo("hour  share online")
    for hour, share in enumerate(summary.online_by_hour):
        typer.echo(f"{hour:02}    {share:6.1%}  {'#' * round(BAR_WIDTH * share)}".rstrip())


def learn(
    run: RunFolder,
    out: Annotated[
        Path, typer.Option(help="CSV or Parquet file for the fleet. A description and a picture are written beside it.")
    ] = Path("fleet.parquet"),
    rounds: Annotated[int | None, typer.Option(help="Learn from the first rounds only. Default: all.")] = None,
    by: Annotated[
        str, typer.Option(help="device: a device per client. class: devices drawn from the slow, mid and fast thirds.")
    ] = "device",
    count: Annotated[
        int | None, typer.Option(help="Number of devices with --by class. Default: the number of clients.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn the devices of a run: compute, network and availability, with their spread.

    The file is one that --devices and `fedbalancer forecast --fleet` read.

    Examples:

        fedbalancer fleet learn runs/flower/my-run --out mine.parquet

        fedbalancer fleet learn runs/flower/my-run --by class --count 500 --out large.csv
    """
    from fedbalancer.experiments import learned_fleet

    learned = learned_fleet.learn(run, rounds=rounds, by=by, count=count)
    files = learned.write(out)
    if as_json:
        typer.echo(json.dumps(learned.to_json() | {"files": [str(file) for file in files]}, default=str))
        return
    description = learned.to_json()
    typer.echo(f"{len(learned.fleet):,} devices from {description['rounds']:,} rounds of {run}")
    for name, share in learned.coverage.items():
        if share is not None:
            typer.echo(f"{share:.0%} of the measured {name} lie in the fitted 90% band of their device")
    for note in learned.notes:
        typer.echo(f"not known: {note}")
    for file in files:
        typer.echo(f"written: {file}")


def shadow(
    run: RunFolder,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods", "--method", "-m", help=f"Comma-separated methods; repeatable. Default: {SHADOWS}.",
            autocompletion=complete_methods,
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Number of rounds to replay, counted from the last one.")] = 100,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Replay the rounds of a run under other methods: how long they would have taken, with bounds.

    Only the timing is replayed, not the accuracy. A method is recommended if its upper bound saves time and it keeps
    the reports and the batches per hour.

    Examples:

        fedbalancer fleet shadow runs/flower/my-run

        fedbalancer fleet shadow runs/flower/my-run --methods 'canter,fedavg[deadline=.5T]' --last 500
    """
    from fedbalancer.experiments.shadow import shadow as replay
    from fedbalancer.methods.names import split_names

    names = split_names(",".join(methods or [SHADOWS]))
    if not names:
        raise BadSetting(f"--methods names no method; pass names such as {SHADOWS}")
    replayed = replay(run, names, last=last)
    if as_json:
        typer.echo(json.dumps(replayed.to_json()))
        return
    typer.echo(f"{run}: {replayed.method}, {replayed.rounds} rounds; replaying them as recorded is off by "
               f"{replayed.error:.1%}")  # fmt: skip
    for line in replayed.lines():
        typer.echo(line)
    for row in replayed.rows:
        if row.method != replayed.method and (why := replayed.why_not(row)):
            typer.echo(f"not recommended: {row.method}, because {why}")


fleet.command("show")(with_clear_errors(show))
fleet.command("learn")(with_clear_errors(learn))
fleet.command("shadow")(with_clear_errors(shadow))
