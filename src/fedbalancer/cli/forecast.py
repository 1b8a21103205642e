"""`fedbalancer forecast`: predict what methods would gain on a fleet."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbalancer.cli import options as shared
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.processes import StopFlag

if TYPE_CHECKING:
    from fedbalancer.experiments.estimates import Estimate
    from fedbalancer.experiments.forecast import Forecast

METHODS = "fedavg+wfa,fedavg+1t,fedbalancer,canter"
LEAST_WIDTH = 110
"""Columns of the printed table; a narrow terminal wraps its lines."""
WEEKDAYS_S = 6 * 86400.0
"""Within these seconds, a weekday names one day."""
HEADINGS = ("method", "clients", "target", "median", "from", "to", "device hours", "GB", "reached")


def forecast(
    fleet: Annotated[
        Path, typer.Option(help="CSV or Parquet file of a fleet; `fedbalancer fleet learn` writes one from a run.")
    ],
    task: Annotated[
        str, typer.Option(help="Name of a task, or TOML file.", autocompletion=shared.complete_task)
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods", "--method", "-m", help=f"Comma-separated methods; repeatable. Default: {METHODS}.",
            autocompletion=shared.complete_methods,
        ),
    ] = None,
    clients_per_round: Annotated[
        str | None, typer.Option(help="Comma-separated numbers of clients per round. Default: the task's.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Comma-separated values of the metric. Default: the highest that are reached.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="When training starts, as 2026-11-19T08:00 (UTC). Default: now.")
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(help="Longest time, as 12h, 7d or 2w. Default: twice the time of FedAvg+1T's rounds."),
    ] = None,
    runs: Annotated[int, typer.Option(help="Simulated runs per method and number of clients.")] = 8,
    level: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.9,
    scale: shared.Scale = "small",
    users: shared.Users = None,
    rounds: shared.Rounds = None,
    set_: shared.Assignments = None,
    config: shared.Config = None,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
) -> None:  # fmt: skip
    """Predict when methods reach an accuracy on a fleet, with intervals, and what it costs.

    Every method is simulated with several seeds on the devices of the fleet. The intervals include chance and the
    uncertainty of the devices' speeds. The output lists what is not known.

    Examples:

        fedbalancer forecast --fleet mine.parquet --task my_task.toml --methods fedavg+wfa,fedbalancer,canter

        fedbalancer forecast --fleet mine.parquet --task har --clients-per-round 5,10,20 --target .8,.9 --horizon 7d
    """
    from fedbalancer.experiments.forecast import forecast as predict
    from fedbalancer.experiments.forecast import parse_duration
    from fedbalancer.methods.names import split_names

    with StopFlag() as stop:
        predicted = predict(
            task, split_names(",".join(methods or [METHODS])), fleet=fleet,
            clients_per_round=[int(number) for number in _numbers("clients-per-round", clients_per_round, whole=True)],
            targets=_numbers("target", target) or None, start=_parse_start(start),
            horizon_s=None if horizon is None else parse_duration(horizon), runs=runs, level=level, jobs=jobs,
            progress=True, stopped=stop, scale=scale, users=users, rounds=rounds,
            settings=shared.overrides(config, set_),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(predicted.to_json()))
    else:
        _print(predicted)


def _numbers(option: str, text: str | None, whole: bool = False) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        numbers = [-1.0]
    if any(number <= 0 or (whole and number != int(number)) for number in numbers):
        raise BadSetting(f"--{option} {text!r} must be numbers above 0, separated by commas")
    return numbers


def _parse_start(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        start = datetime.fromisoformat(text)
    except ValueError:
        raise BadSetting(f"--start {text!r} must be a date and time such as 2026-11-19T08:00") from None
    return start.replace(tzinfo=UTC) if start.tzinfo is None else start


def _print(predicted: Forecast) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)
    written = "%a %H:%M" if predicted.horizon_s < WEEKDAYS_S else "%d %b %H:%M"
    typer.echo(f"{predicted.task}: forecast from {predicted.at(0)} to {predicted.at(predicted.horizon_s)} (UTC), "
               f"{predicted.level:.0%} intervals from {predicted.runs} simulated runs")  # fmt: skip
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in predicted.rows:
        for target in predicted.targets:
            seconds = row.seconds[target]
            times = [
                predicted.at(value, written) if value is not None else "later"
                for value in (seconds.median, seconds.low, seconds.high)
            ]
            clients = "" if row.clients_per_round is None else str(row.clients_per_round)
            table.add_row(row.method, clients, f"{target:g}", *times, _shown(row.device_hours[target]),
                          _shown(row.gigabytes[target]), f"{seconds.reached:.0%}")  # fmt: skip
    console.print(table)
    for row in predicted.rows:
        typer.echo(predicted.sentence(row, predicted.targets[-1]))
    for row in predicted.rows:
        dropped, taken = row.dropouts.median or 0.0, row.round_s.median or 0.0
        typer.echo(f"{row.label}: {dropped:.0%} of the selected clients send no report that counts; "
                   f"a round takes {taken:,.0f} s")  # fmt: skip
    for check in predicted.checks:
        typer.echo(f"check: {check}")
    for note in predicted.notes:
        typer.echo(f"not known: {note}" if not note.startswith("chance") else f"how sure: {note}")


def _shown(estimate: Estimate) -> str:
    if estimate.median is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.median:.2g} ({estimate.low:.2g}-{estimate.high:.2g})"
