"""The lines of figures and charts: a mean over seeds with a band from the lowest to the highest seed.

Seeds end at different times. The mean and the band end with the shortest seed; beyond it, every longer seed is a
separate thin line (a tail), because a mean of the remaining seeds would only include the slow ones.

Accuracy is drawn over several x axes: the share of the budget, time, rounds, bytes, or device time. Every seed has its
own budget, so over the share of the budget all seeds end together even if their clocks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.reporting.results import Results, StoredRun
from fedbalancer.reporting.style import byte_unit, time_unit

TIME_POINTS = 120
ROUND_POINTS = 120
"""Maximum number of points per line; more rounds are averaged in groups, to keep pages readable and small."""

NOISY_POINTS = 20
"""The same for a column that varies strongly from round to round."""


class Curve(NamedTuple):
    """The values of one seed, `x` ascending."""

    seed: int
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, eq=False)
class Band:
    """A line over `x` with the range of the seeds; `tails` are the parts of seeds beyond the shortest seed."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    seeds: int
    tails: tuple[Curve, ...] = ()

    @property
    def end(self) -> float:
        """The largest x of the line and its tails."""
        return max((float(x[-1]) for x in (self.x, *(tail.x for tail in self.tails)) if len(x)), default=0.0)


@dataclass(frozen=True)
class Panel:
    """A column of rounds.parquet that is drawn over rounds.

    Attributes:
        name: Name of the chart.
        column: Name of the column.
        title: Title of the chart.
        axis: Label of the y axis.
        about: Caption of the chart.
        absent: What a method lacks if all its values are zero or not finite.
        points: Maximum number of points per line.
        figure: Whether the column is also drawn as an image file.
        between: Columns to draw as thin lines, with their labels.
    """

    name: str
    column: str
    title: str
    axis: str
    about: str
    absent: str = ""
    points: int = ROUND_POINTS
    figure: bool = False
    between: tuple[tuple[str, str], ...] = ()

    def width(self, results: Results) -> int:
        """Return the number of rounds per point, the same for all methods."""
        return max((-(-run.rounds.height // self.points) for run in results.runs), default=1) or 1

    def bands(self, results: Results, column: str = "") -> dict[str, Band | None]:
        """Return the line of every method; None if a method has no values."""
        width = self.width(results)
        bands = {m: round_band(results.of(m), column or self.column, width) for m in results.methods}
        return {m: drop_zeros(band) for m, band in bands.items()} if self.absent else bands


PANELS = (
    Panel(
        "completed", "completed", "Completed clients per round", "clients", "Clients whose update arrived in time.",
        points=NOISY_POINTS, figure=True,
    ),
    Panel(
        "dropped", "dropped", "Dropped clients per round", "clients",
        "Selected clients whose update did not arrive in time.", "dropped client",
        points=NOISY_POINTS,
    ),
    Panel(
        "deadline", "deadline_s", "Deadline per round", "deadline (s)",
        "When the server closes the round. Thin: its limits dl and dh, if recorded.",
        "deadline", figure=True, between=(("deadline_low_s", "dl"), ("deadline_high_s", "dh")),
    ),
    Panel(
        "deadline-ratio", "deadline_ratio", "Deadline ratio", "ratio",
        "Position of the deadline between dl (0) and dh (1) that the pace control chose; 1 without pace control. A"
        " deadline policy may ignore it.",
    ),
    Panel(
        "threshold", "loss_threshold", "Loss threshold per round", "loss threshold",
        "Clients prefer samples with a loss at or above it.", "threshold", figure=True,
    ),
    Panel(
        "threshold-ratio", "loss_threshold_ratio", "Loss threshold ratio", "ratio",
        "Position of the threshold between the lowest (0) and the highest loss (1) that clients reported.",
        "loss threshold ratio",
    ),
)  # fmt: skip


def make_band(curves: Iterable[Curve]) -> Band | None:
    """Average the curves of several seeds, interpolated on a common grid of `TIME_POINTS` points.

    Args:
        curves: One curve per seed; empty curves are ignored.

    Returns:
        The band over the range that all seeds cover, with a tail for every longer seed; None without curves.
    """
    seeds = [curve for curve in curves if len(curve.x)]
    if not seeds:
        return None
    if len(seeds) == 1:
        kept = _thin_out(seeds[0], TIME_POINTS)
        return Band(kept.x, kept.y, kept.y, kept.y, 1)
    start = max(curve.x[0] for curve in seeds)
    end = max(start, min(curve.x[-1] for curve in seeds))
    grid = np.linspace(start, end, TIME_POINTS)
    values = np.stack([np.interp(grid, curve.x, curve.y) for curve in seeds])
    tails = tuple(_thin_out(_cut(curve, float(end)), TIME_POINTS) for curve in seeds if curve.x[-1] > end)
    return Band(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(seeds), tails)


def round_band(runs: Sequence[StoredRun], column: str, width: int = 1) -> Band | None:
    """Average a column of rounds.parquet over seeds.

    Args:
        runs: The runs of one method.
        column: Name of the column; rounds without a finite value are left out.
        width: Number of rounds per point.

    Returns:
        The band over the rounds that all runs have; None without values.
    """
    grouped = {
        run.curve.seed: _group_rounds(run.rounds, column, width)
        for run in runs
        if run.rounds.height and column in run.rounds.columns
    }
    if not grouped:
        return None
    last = min(int(run.rounds["round"].max()) for run in runs if run.rounds.height)  # type: ignore[arg-type]
    value, shared = pl.col("value"), (last - 1) // width
    both = pl.concat(grouped.values()).filter(pl.col("group") <= shared).group_by("group").agg(
        pl.col("round").mean(), value.mean().alias("mean"), value.min().alias("low"), value.max().alias("high")
    ).sort("group")  # fmt: skip
    if not both.height:
        return None
    x, mean, low, high = (both[name].to_numpy() for name in ("round", "mean", "low", "high"))
    longer = {seed: frame.filter(pl.col("group") >= shared) for seed, frame in grouped.items()}
    tails = tuple(Curve(seed, f["round"].to_numpy(), f["value"].to_numpy()) for seed, f in longer.items() if len(f) > 1)
    return Band(x, mean, low, high, len(grouped), tails)


def drop_zeros(band: Band | None) -> Band | None:
    """Return None for a band that is 0 everywhere, which marks a control that a method does not have."""
    return band if band is not None and np.any(band.high != 0) else None


def outcome_shares(runs: Sequence[StoredRun]) -> dict[str, float]:
    """Return the share of each outcome among all selected clients."""
    counts: dict[str, int] = {}
    for run in runs:
        for outcome, clients in run.outcomes.iter_rows():
            counts[str(outcome)] = counts.get(str(outcome), 0) + clients
    total = sum(counts.values())
    return {outcome: count / total for outcome, count in counts.items()} if total else {}


def merge_evaluations(run: StoredRun) -> pl.DataFrame:
    """Return all evaluations of a run with a finite metric, by rounds and on the grid, in the order of the clock."""
    evals, grid, name = run.curve.evals, run.curve.grid, run.curve.metric.name
    if name not in evals.columns:
        return evals.clear()
    both = evals if grid is None or not grid.height else pl.concat([evals, grid.select(evals.columns)])
    return both.filter(pl.col(name).is_not_null() & pl.col(name).is_finite()).sort("clock_s", maintain_order=True)


@dataclass(frozen=True, eq=False)
class Axis:
    """The metric of every method over one x axis; `per_unit` converts values to the unit of the label."""

    key: str
    choice: str
    label: str
    per_unit: float
    bands: dict[str, Band | None]


def accuracy_axes(results: Results) -> list[Axis]:
    """Return the x axes for which the runs recorded values; the share of the budget first, if there is a budget."""
    axes = [
        _axis(results, "share", "share of the time budget", lambda most: (1.0, "")),
        _axis(results, "time", clock_name(results), time_unit),
        _axis(results, "rounds", "rounds", lambda most: (1.0, "")),
        _axis(results, "bytes", "bytes sent, down and up", byte_unit),
        _axis(results, "energy", "energy: device time", time_unit),
    ]
    return [axis for axis in axes if any(axis.bands.values())]


def clock_name(results: Results) -> str:
    """Return the name of the runs' clock: simulated, or that of the server or of emulated phones."""
    devices = {str(run.manifest.get("device")) for run in results.runs if run.manifest.get("engine") == "flower"}
    if "emulated" in devices:
        return "time on the phones' clock"
    return "time on the server's clock" if devices else "simulated time"


def name_clock(results: Results, text: str) -> str:
    """Replace the simulated clock in a text by the clock of these runs."""
    name = clock_name(results)
    if name == "simulated time":
        return text
    clock = name.removeprefix("time on ")
    return text.replace("the simulated clock", clock).replace("simulated seconds", f"seconds of {clock}")


def _axis(results: Results, key: str, choice: str, unit: Callable[[float], tuple[float, str]]) -> Axis:
    curves = {method: [_curve(results, run, key) for run in results.of(method)] for method in results.methods}
    most = max((curve.x[-1] for seeds in curves.values() for curve in seeds if len(curve.x)), default=0.0)
    per_unit, name = unit(float(most))
    bands = {
        method: _add_tails(
            make_band(_scale(curve, per_unit) for curve in curves[method]),
            [_scale(_curve(results, run, key), per_unit) for run in _unfinished(results, method)],
        )
        for method in results.methods
    }
    return Axis(key, choice, f"{choice} ({name})" if name else choice, per_unit, bands)


def _unfinished(results: Results, method: str) -> list[StoredRun]:
    """Return the started runs of a method that are not averaged, because other runs of it can be scored."""
    averaged = results.of(method)
    started = [run for run in results.runs if run.curve.method == method and run.curve.evals.height]
    return [run for run in started if not any(run is other for other in averaged)]


def _add_tails(band: Band | None, curves: list[Curve]) -> Band | None:
    kept = tuple(curve for curve in curves if len(curve.x) > 1)
    if band is None or not kept:
        return band
    return Band(band.x, band.mean, band.low, band.high, band.seeds + len(kept), (*band.tails, *kept))


def _scale(curve: Curve, per_unit: float) -> Curve:
    return curve._replace(x=curve.x / per_unit)


def _curve(results: Results, run: StoredRun, key: str) -> Curve:
    """Return the evaluations of a run over one x axis; empty if the run did not record it."""
    evals = merge_evaluations(run)
    x = _positions(evals, run, results.budgets_s.get(run.curve.seed), key) if evals.height else None
    if x is None or not np.all(np.isfinite(x)):
        return Curve(run.curve.seed, np.zeros(0), np.zeros(0))
    return Curve(run.curve.seed, x, evals[run.curve.metric.name].to_numpy().astype(np.float64))


def _positions(evals: pl.DataFrame, run: StoredRun, budget_s: float | None, key: str) -> FloatArray | None:
    clock_s = evals["clock_s"].to_numpy().astype(np.float64)
    if key == "time":
        return clock_s
    if key == "share":
        return clock_s / budget_s if budget_s else None
    if "round" not in evals.columns:
        return None
    number = evals["round"].to_numpy().astype(np.int64)
    return number.astype(np.float64) if key == "rounds" else _cumulate(run, key, number)


def _cumulate(run: StoredRun, key: str, number: IndexArray) -> FloatArray | None:
    """Return the bytes or device seconds until the end of the given rounds."""
    column = {"bytes": "sent_bytes", "energy": "device_s"}[key]
    rounds = run.rounds
    if column not in rounds.columns or not rounds.height or rounds[column].null_count():
        return None
    total = np.full(int(rounds["round"].max()) + 1, np.nan)  # type: ignore[arg-type]
    total[0] = 0.0
    total[rounds["round"].to_numpy()] = np.cumsum(rounds[column].to_numpy().astype(np.float64))
    return np.asarray(total[np.minimum(number, len(total) - 1)])


def _group_rounds(rounds: pl.DataFrame, column: str, width: int) -> pl.DataFrame:
    value = pl.col(column).cast(pl.Float64)
    return (
        rounds.filter(value.is_not_null() & value.is_finite())
        .group_by(((pl.col("round") - 1) // width).alias("group"))
        .agg(pl.col("round").mean().cast(pl.Float64), value.mean().alias("value"))
        .sort("group")
    )


def _cut(curve: Curve, end: float) -> Curve:
    """Return the part of a curve after `end`, starting where the mean stops."""
    after = curve.x > end
    x = np.concatenate([[end], curve.x[after]])
    return Curve(curve.seed, x, np.concatenate([[np.interp(end, curve.x, curve.y)], curve.y[after]]))


def _thin_out(curve: Curve, points: int) -> Curve:
    """Return at most `points` points of a curve, including the first and the last."""
    if len(curve.x) <= points:
        return curve
    kept = np.unique(np.linspace(0, len(curve.x) - 1, points).round().astype(int))
    return Curve(curve.seed, curve.x[kept], curve.y[kept])
