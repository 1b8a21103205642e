"""`fedbalancer fleet`: show who is how fast and when online in a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbalancer.cli.errors import Commands, with_clear_errors
from fedbalancer.cli.options import Json
from fedbalancer.core.errors import BadSetting

if TYPE_CHECKING:
    from fedbalancer.simulation.devices.fleet_check import FleetSummary

HEADINGS = ("min", "5%", "25%", "median", "75%", "95%", "max")
UNITS = {"batch_s": "s", "sample_s": "s", "down_mbit_s": "Mbit/s", "up_mbit_s": "Mbit/s"}
BAR_WIDTH = 40

fleet = typer.Typer(cls=Commands, help="Show the devices of a fleet.", no_args_is_help=True)


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
    typer.echo(f"online on average {summary.online_share.mean():.1%} of the time; intervals repeat after {days:g} days")
    typer.echo("hour  share online")
    for hour, share in enumerate(summary.online_by_hour):
        typer.echo(f"{hour:02}    {share:6.1%}  {'#' * round(BAR_WIDTH * share)}".rstrip())


fleet.command("show")(with_clear_errors(show))


@fleet.callback()
def _group() -> None:
    """Show the devices of a fleet."""
