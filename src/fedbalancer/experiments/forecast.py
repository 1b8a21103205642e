"""Forecasts what methods would gain on a fleet: the time to each accuracy with an interval, device hours and bytes.

Every method runs in the simulator with several seeds. Each seed also varies the fleet, as far as its measurement may be
wrong (`learned_fleet.vary`), so an interval contains chance, training and the error of the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.errors import BadSetting, FedBalancerError
from fedbalancer.core.metrics import Metric
from fedbalancer.data import Task
from fedbalancer.experiments.estimates import Estimate, estimate, plain_estimate
from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.jobs import Job, JobPool
from fedbalancer.experiments.learned_fleet import read_description, vary
from fedbalancer.experiments.plan import ComparisonPlan
from fedbalancer.experiments.progress import JobEvent, comparison_display
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.names import parse_method_name
from fedbalancer.reporting.results import RunCurve
from fedbalancer.reporting.rule import GRID, select_evaluations, time_to_target
from fedbalancer.simulation.devices import Fleet
from fedbalancer.simulation.devices.fleet_files import resolve_devices
from fedbalancer.simulation.devices.trace_files import DAY_S
from fedbalancer.simulation.executors import Resources
from fedbalancer.store import MemoryRecorder

RUNS, LEVEL, BUDGETS = 8, 0.9, 2.0
"""Defaults: simulated runs per row, probability of an interval, and the horizon in budgets of FedAvg+1T."""
STEPS = (0.05, 0.02, 0.01)
"""Distances between default targets, the first that gives enough of them."""
ENOUGH_TARGETS = 3
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
"""The periods of fleets start on a Monday at midnight, UTC."""


@dataclass(frozen=True, eq=False)
class ForecastRow:
    """The forecast of one method with one number of clients per round.

    Args:
        method: The method.
        clients_per_round: Number of clients per round; None: the task's.
        seconds: Seconds to every target.
        device_hours: Hours that all devices together work until every target.
        gigabytes: Data sent in both directions until every target.
        dropouts: Share of selected clients whose report does not count.
        round_s: Seconds per round.
        value: Metric at the horizon.
        rounds: Seconds of every simulated round: a row per run and round.
    """

    method: str
    clients_per_round: int | None
    seconds: Mapping[float, Estimate]
    device_hours: Mapping[float, Estimate]
    gigabytes: Mapping[float, Estimate]
    dropouts: Estimate
    round_s: Estimate
    value: Estimate
    rounds: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def label(self) -> str:
        """Method and number of clients, for tables."""
        return self.method if self.clients_per_round is None else f"{self.method}, {self.clients_per_round} clients"

    def to_json(self) -> dict[str, Any]:
        by_target = {
            f"{target:g}": {
                "seconds": self.seconds[target].to_json(),
                "device_hours": self.device_hours[target].to_json(),
                "gigabytes": self.gigabytes[target].to_json(),
            }
            for target in self.seconds
        }
        return {
            "method": self.method, "clients_per_round": self.clients_per_round, "targets": by_target,
            "dropouts": self.dropouts.to_json(), "round_s": self.round_s.to_json(), "final": self.value.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Forecast:
    """The forecast of several methods on one fleet.

    Args:
        task: Name of the task.
        rows: A forecast per method and number of clients.
        runs: Simulated runs per row.
        level: Probability of the intervals.
        horizon_s: Longest simulated time.
        start: When training would start.
        metric: The metric of the targets.
        notes: What the forecast does not know, in sentences.
        checks: What the simulator says about rounds that were recorded, in sentences.
    """

    task: str
    rows: tuple[ForecastRow, ...]
    runs: int
    level: float
    horizon_s: float
    start: datetime
    metric: Metric
    notes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[float, ...]:
        """The targets, in ascending order."""
        return tuple(self.rows[0].seconds) if self.rows else ()

    def at(self, seconds: float, written: str = "%a %d %b %H:%M") -> str:
        """Return a time in words, such as Thu 19 Nov 14:00.

        Args:
            seconds: Seconds after the start.
            written: The format of `strftime`.
        """
        return (self.start + timedelta(seconds=seconds)).strftime(written)

    def sentence(self, row: ForecastRow, target: float) -> str:
        """Return when a method reaches a target, in words.

        Args:
            row: The method.
            target: The target.
        """
        estimate, end = row.seconds[target], f"after {self.at(self.horizon_s)}"
        shown = f"{target:.0%}" if self.metric.is_share else f"{self.metric.name} {target:g}"
        if estimate.median is None:
            return f"{row.label}: {shown} {end}, if ever ({estimate.reached:.0%} of the runs reach it before)"
        low = self.at(estimate.low) if estimate.low is not None else "now"
        high = self.at(estimate.high) if estimate.high is not None else end.replace("after ", "later than ")
        return f"{row.label}: {shown} on {self.at(estimate.median)}, between {low} and {high} ({self.level:.0%})"

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task, "runs": self.runs, "level": self.level, "horizon_s": self.horizon_s,
            "start": self.start.isoformat(), "metric": self.metric.to_json(),
            "rows": [row.to_json() for row in self.rows], "unknown": list(self.notes), "checks": list(self.checks),
        }  # fmt: skip


def forecast(
    task: str | Task,
    methods: Sequence[str],
    *,
    fleet: Fleet | Path | str,
    clients_per_round: Sequence[int] = (),
    runs: int = RUNS,
    level: float = LEVEL,
    targets: Sequence[float] | None = None,
    horizon_s: float | None = None,
    start: datetime | None = None,
    measured: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Forecast:
    """Forecast the time to each accuracy of methods on a fleet.

    Args:
        task: A task's name, a TOML file, or a `Task`.
        methods: Method names.
        fleet: The fleet, or its file. A description beside the file (`fedbalancer fleet learn`) says how certain it is.
        clients_per_round: Numbers of clients per round. Default: the task's.
        runs: Simulated runs per method and number of clients.
        level: Probability of the intervals.
        targets: Values of the metric. Default: the highest that the methods reach.
        horizon_s: Longest simulated time. Default: twice the time of FedAvg+1T's rounds.
        start: When training would start. Default: now.
        measured: Description of a learned fleet. Default: that beside the file.
        jobs: Number of runs in parallel.
        progress: Whether to show progress.
        stopped: Checked several times per second; if it returns True, the forecast stops.
        **options: Other options of a run: scale, users, variant, settings, rounds, backend, device.

    Returns:
        The forecast.

    Raises:
        FedBalancerError: If an option is invalid, or a run fails.

    Example:
        >>> from fedbalancer import Fleet
        >>> small = {"users": 8, "rounds": 4, "runs": 2, "targets": [0.3], "jobs": 1}
        >>> predicted = forecast("synthetic", ["fedavg+wfa"], fleet=Fleet.synthetic(8), **small)
        >>> [row.method for row in predicted.rows], predicted.targets
        (['fedavg+wfa'], (0.3,))
    """
    if runs < 2:
        raise BadSetting(f"runs = {runs} must be at least 2: an interval needs several runs")
    if not 0 < level < 1:
        raise BadSetting(f"level = {level} must be between 0 and 1")
    path = Path(fleet) if isinstance(fleet, str | Path) else None
    devices = resolve_devices(fleet)
    if not isinstance(devices, Fleet) or not devices.devices:
        raise BadSetting("a forecast needs a fleet with devices; learn one with `fedbalancer fleet learn RUN`")
    known = measured if measured is not None else read_description(path, devices)
    began = start if start is not None else datetime.now(UTC).replace(second=0, microsecond=0)
    settings = dict(options.pop("settings", None) or {})
    if known is not None:
        settings.setdefault("window_s", known["window_s"])
    names = {
        _with_clients(method, count): (method, count) for method in methods for count in clients_per_round or (None,)
    }
    devices = shift(devices, (began - MONDAY).total_seconds())
    base = RunSpec(task=task, settings=settings, devices=devices, **options)
    plan = ComparisonPlan.make(base, list(names), range(runs))
    for target in targets or ():
        plan.metric.check_target(target)
    horizon_s = horizon_s if horizon_s is not None else BUDGETS * max(plan.budgets_s.values())
    rounds_of = (known or {}).get("measured_rounds")
    fleets = {seed: devices if rounds_of is None else vary(devices, rounds_of, seed) for seed in plan.seeds}
    every_s = horizon_s / (BUDGETS * GRID)
    specs = [
        replace(spec, devices=fleets[spec.seed], budget_s=horizon_s,
                settings={"eval_every_s": every_s, **plan.base.overrides})
        for spec in plan.specs
    ]  # fmt: skip
    overhead_s = float((known or {}).get("overhead_s", 0.0))
    ran = _run(plan, specs, jobs, progress, stopped)
    curves = {key: with_overhead(curve, overhead_s) for key, curve in ran.items()}
    labels = dict(zip(plan.method_names, names.values(), strict=True))
    sign, evaluations = plan.metric.sign, {
        key: select_evaluations(curve, horizon_s / BUDGETS, "fair") for key, curve in curves.items()
    }  # fmt: skip
    chosen = tuple(sorted(targets)) if targets else default_targets(plan.metric, plan.method_names, evaluations)
    rows = tuple(
        _row(method, count, [curves[name, seed] for seed in plan.seeds],
             [evaluations[name, seed] for seed in plan.seeds], chosen, sign, level, horizon_s)
        for name, (method, count) in labels.items()
    )  # fmt: skip
    notes = _notes(plan, devices, known, rows, runs)
    return Forecast(
        plan.task.name, rows, runs, level, horizon_s, began, plan.metric, notes, _checks(known, rows)
    )  # fmt: skip


def _with_clients(method: str, count: int | None) -> str:
    if count is None:
        return method
    parsed = parse_method_name(method)
    return str(replace(parsed, settings={**parsed.settings, "clients_per_round": count}))


def _run(
    plan: ComparisonPlan, specs: Sequence[RunSpec], jobs: int | None, progress: bool, stopped: Callable[[], bool]
) -> dict[tuple[str, int], RunCurve]:
    """Run all specs in memory and return their curves."""
    parallel, each = Resources(workers=None).divide(len(specs), jobs)
    ExecutorCache(each).check(plan.base)
    with comparison_display(plan.method_names, plan.seeds, progress) as listen, JobPool(
        plan.own_task, parallel, each
    ) as pool:  # fmt: skip
        events: Mapping[Any, JobEvent] = pool.run([Job(spec, MemoryRecorder()) for spec in specs], listen, stopped)
    for key, event in events.items():
        if event.curve is None or event.kind != "done":
            raise FedBalancerError(f"{key[0]} seed {key[1]} {event.kind}: {event.why or 'interrupted'}")
    return {key: event.curve for key, event in events.items() if event.curve is not None}


def with_overhead(curve: RunCurve, overhead_s: float) -> RunCurve:
    """Return a run whose clock also counts the seconds between rounds, such as evaluations on real clients.

    Args:
        curve: The run.
        overhead_s: Seconds per round.
    """

    def later(table: pl.DataFrame, ends: str) -> pl.DataFrame:
        first = overhead_s * (pl.col("round") - 1).clip(0)
        return table.with_columns(pl.col("start_s") + first, pl.col(ends) + overhead_s * pl.col("round"))

    if not overhead_s:
        return curve
    return replace(
        curve, evals=later(curve.evals, "clock_s"), grid=None if curve.grid is None else later(curve.grid, "clock_s"),
        traffic=None if curve.traffic is None else later(curve.traffic, "end_s"),
    )  # fmt: skip


def shift(fleet: Fleet, start_s: float) -> Fleet:
    """Return the fleet with its online intervals relative to a start.

    Args:
        fleet: A fleet whose period starts at second 0.
        start_s: Second at which the run starts.
    """
    if not fleet.has_online:
        return fleet
    assert fleet.period_s is not None
    period_s = fleet.period_s
    offset_s = start_s % period_s

    def shifted(online: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        moved = [((start - offset_s) % period_s, end - start) for start, end in online]
        inside = [(start, min(start + length, period_s)) for start, length in moved]
        return inside + [(0.0, start + length - period_s) for start, length in moved if start + length > period_s]

    devices = [
        device if device.online is None else replace(device, online=shifted(device.online)) for device in fleet.devices
    ]
    return Fleet(devices, period_s)


def default_targets(
    metric: Metric, names: Sequence[str], evaluations: Mapping[tuple[str, int], pl.DataFrame]
) -> tuple[float, ...]:
    """Return round values of the metric up to the highest that a method reaches in half of its runs.

    Args:
        metric: The metric.
        names: The methods.
        evaluations: The evaluations of every run, by method and seed.
    """

    def levels(name: str, pick: Callable[[pl.Series], Any]) -> list[float]:
        picked = [pick(table["level"].drop_nulls()) for (method, _), table in evaluations.items() if method == name]
        return [float(each) for each in picked if each is not None]

    best = [np.median(each) for name in names if (each := levels(name, lambda column: column.max()))]
    if not best:
        raise BadSetting("no run was evaluated often enough for a target; use a longer --horizon")
    first = [np.median(each) for name in names if (each := levels(name, lambda column: column.first()))]
    high, low = float(max(best)), float(min(first))
    scale = 1.0 if metric.is_share else 10.0 ** math.floor(math.log10(max(abs(high), abs(low), 1e-12)))
    for step in STEPS:
        steps = step * scale
        highest = math.floor(high / steps + 1e-9)
        lowest = math.floor(low / steps) + 1
        if highest - lowest + 1 >= ENOUGH_TARGETS:
            chosen = range(max(lowest, highest - 4), highest + 1)
            return tuple(sorted(round(metric.sign * number * steps, 9) for number in chosen))
    return (round(metric.sign * high, 3),)


def _row(
    method: str, count: int | None, curves: Sequence[RunCurve], evaluations: Sequence[pl.DataFrame],
    targets: Sequence[float], sign: float, level: float, horizon_s: float,
) -> ForecastRow:  # fmt: skip
    times = {target: [time_to_target(table, sign * target) for table in evaluations] for target in targets}

    def spent(columns: Sequence[str], unit: float, target: float) -> Estimate:
        known = [
            sum(curve.spent(column, time_s) or 0.0 for column in columns) / unit if time_s is not None else None
            for curve, time_s in zip(curves, times[target], strict=True)
        ]
        return estimate(known, level)

    rounds = [curve.traffic for curve in curves if curve.traffic is not None]
    shares = [1 - int(each["completed"].sum()) / max(int(each["selected"].sum()), 1) for each in rounds]
    lasted = pl.concat([
        each.select("round", "selected", "completed", "down_bytes", "up_bytes", "device_s",
                    seconds=pl.col("end_s") - pl.col("start_s"), run=pl.lit(number))
        for number, each in enumerate(rounds)
    ])  # fmt: skip
    finals = [sign * float(table["level"].drop_nulls().last() or math.nan) for table in evaluations]  # type: ignore[arg-type]
    tail = (1 - level) / 2
    return ForecastRow(
        method, count,
        seconds={target: estimate(times[target], level, horizon_s) for target in targets},
        device_hours={target: spent(["device_s"], 3600.0, target) for target in targets},
        gigabytes={target: spent(["down_bytes", "up_bytes"], 1e9, target) for target in targets},
        dropouts=plain_estimate(np.array(shares, dtype=np.float64), level),
        round_s=Estimate(*np.quantile(lasted["seconds"].to_numpy(), [tail, 0.5, 1 - tail]).tolist()),
        value=plain_estimate(np.array(finals), level), rounds=lasted,
    )  # fmt: skip


def _notes(
    plan: ComparisonPlan, fleet: Fleet, known: Mapping[str, Any] | None, rows: Sequence[ForecastRow], runs: int
) -> tuple[str, ...]:
    """Return what a forecast does not know."""
    own = {device.id for device in fleet.devices}
    drawn = sum(client not in own for client in plan.task.sizes)
    notes = [
        f"data: accuracies are those of the task {plan.task.name!r}, trained in the simulator; data that the devices "
        "have and the task has not are unknown"
    ]
    if drawn:
        notes.append(f"devices: {drawn} of {len(plan.task.sizes)} clients have no device of their own in the fleet; "
                     "each run draws one for them")  # fmt: skip
    if known is None:
        notes.append("measurement: the file does not say how often its devices were measured, so the intervals contain "
                     "chance, not the error of the fleet")  # fmt: skip
    else:
        notes += [f"fleet: {note}" for note in known["notes"]]
        notes.append(f"future: the devices were measured for {known['rounds']} rounds ({known['seconds'] / 3600:.1f} "
                     "h); devices, networks and hours that change later are unknown")  # fmt: skip
    open_targets = [row.label for row in rows if any(each.high is None for each in row.seconds.values())]
    if open_targets:
        notes.append(f"horizon: some intervals of {', '.join(open_targets)} end after it; use a longer --horizon")
    notes.append(f"chance: every row is {runs} simulated runs")
    return tuple(notes)


def _checks(known: Mapping[str, Any] | None, rows: Sequence[ForecastRow]) -> tuple[str, ...]:
    """Compare the simulated rounds of the recorded method with the recorded ones."""
    if known is None:
        return ()
    recorded_s = known["seconds"] / known["rounds"] + known.get("overhead_s", 0.0)
    checks = []
    for row in rows:
        if row.method != known.get("method") or row.clients_per_round not in (None, known.get("clients_per_round")):
            continue
        first = row.rounds.filter(pl.col("round") <= known["rounds"])
        simulated_s = float(first["seconds"].mean())  # type: ignore[arg-type]
        checks.append(f"{row.label}: the recorded rounds took {recorded_s:,.1f} s, the simulated ones take "
                      f"{simulated_s:,.1f} s ({simulated_s / recorded_s - 1:+.0%})")  # fmt: skip
    return tuple(checks)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 12h, 7d or 2w; a plain number is seconds.

    Args:
        text: The duration.

    Raises:
        BadSetting: If it is not a duration above 0.

    Example:
        >>> parse_duration("12h"), parse_duration("90")
        (43200.0, 90.0)
    """
    unit = UNITS_S.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadSetting(f"{text!r} must be a duration such as 3600, 90m, 12h, 7d or 2w")
    return seconds
