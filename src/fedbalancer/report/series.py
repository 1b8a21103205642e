"""The lines that figures and page draw: a mean over seeds with a band from the lowest to the highest seed.

Seeds end at different times. Mean and band go as far as all seeds do; beyond, every seed that goes on is a thin line of
its own (a `Tail`), because the mean of those that are left would be one of the slow ones only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from fedbalancer.report.stored import Results, StoredRun
from fedbalancer.types import FloatArray

TIME_POINTS = 120
ROUND_POINTS = 120
"""More rounds than this are averaged in groups, so that a long run stays readable and its page small."""

NOISY_POINTS = 20
"""The same for a column that jumps from round to round."""


class Curve(NamedTuple):
    """One seed's values, `x` ascending."""

    seed: int
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, eq=False)
class Band:
    """A line over `x`, and between which values the seeds lie; `tails` are the seeds that go on beyond the shortest."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    seeds: int
    tails: tuple[Curve, ...] = ()

    @property
    def end(self) -> float:
        """The largest x of line and tails."""
        return max((float(x[-1]) for x in (self.x, *(tail.x for tail in self.tails)) if len(x)), default=0.0)


@dataclass(frozen=True)
class Panel:
    """A column of rounds.parquet that is drawn over rounds, on the page and, with a `figure`, as a picture; `absent` is
    what a method that has only zeros in it, or nothing finite, does without. `between` are two columns that are drawn
    thin beside it."""

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
        """How many rounds one point stands for, the same for all methods."""
        return max((-(-run.rounds.height // self.points) for run in results.runs), default=1) or 1

    def bands(self, results: Results, column: str = "") -> dict[str, Band | None]:
        """The line of every method, None where it has none."""
        width = self.width(results)
        bands = {m: round_band(results.of(m), column or self.column, width) for m in results.methods}
        return {m: used(band) for m, band in bands.items()} if self.absent else bands


PANELS = (
    Panel(
        "completed", "completed", "Completed clients per round", "clients", "Clients whose update arrived in time.",
        points=NOISY_POINTS, figure=True,
    ),
    Panel(
        "dropped", "dropped", "Dropped clients per round", "clients",
        "Clients that were selected and whose update did not arrive in time.", "client that was dropped",
        points=NOISY_POINTS,
    ),
    Panel(
        "deadline", "deadline_s", "Deadline per round", "deadline (s)",
        "When the server closes the round. Thin: dl and dh, between which it may move, where they were recorded.",
        "deadline", figure=True, between=(("deadline_low_s", "dl"), ("deadline_high_s", "dh")),
    ),
    Panel(
        "deadline-ratio", "deadline_ratio", "Deadline ratio", "ratio",
        "Where the pace control wants the deadline between dl (0) and dh (1), and 1 without one. A deadline policy need"
        " not use it.",
    ),
    Panel(
        "threshold", "loss_threshold", "Loss threshold per round", "loss threshold",
        "Clients prefer samples with a loss at or above it.", "threshold", figure=True,
    ),
    Panel(
        "threshold-ratio", "loss_threshold_ratio", "Loss threshold ratio", "ratio",
        "Where the threshold stands between the lowest (0) and the highest loss (1) that clients released.",
        "loss threshold ratio",
    ),
)  # fmt: skip


def band_of(curves: Iterable[Curve], points: int = TIME_POINTS) -> Band | None:
    """Each seed interpolated on one grid over what all of them cover, and what some have beyond it."""
    found = [each for each in curves if len(each.x)]
    if not found:
        return None
    if len(found) == 1:
        kept = _thinned(found[0], points)
        return Band(kept.x, kept.y, kept.y, kept.y, 1)
    start = max(each.x[0] for each in found)
    end = max(start, min(each.x[-1] for each in found))
    grid = np.linspace(start, end, points)
    values = np.stack([np.interp(grid, each.x, each.y) for each in found])
    tails = tuple(_thinned(_beyond(each, float(end)), points) for each in found if each.x[-1] > end)
    return Band(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(found), tails)


def round_band(runs: Sequence[StoredRun], column: str, width: int = 1) -> Band | None:
    """A column of rounds.parquet over the rounds that all runs have, as means of `width` rounds; rounds without a
    finite value are left out."""
    grouped = {
        run.curve.seed: _grouped(run.rounds, column, width)
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


def used(band: Band | None) -> Band | None:
    """The band, unless it is 0 everywhere: the mark of a control that a method does not have."""
    return band if band is not None and np.any(band.high != 0) else None


def outcome_shares(runs: Sequence[StoredRun]) -> dict[str, float]:
    """Of all clients that were selected, which share ended in which way."""
    counts: dict[str, int] = {}
    for run in runs:
        for outcome, clients in run.outcomes.iter_rows():
            counts[str(outcome)] = counts.get(str(outcome), 0) + clients
    total = sum(counts.values())
    return {outcome: count / total for outcome, count in counts.items()} if total else {}


def evaluations(run: StoredRun) -> pl.DataFrame:
    """All evaluations of a run that gave a number, by rounds and on the grid of seconds, in the order of the clock."""
    evals, grid, accuracy = run.curve.evals, run.curve.grid, pl.col("accuracy")
    both = evals if grid is None or not grid.height else pl.concat([evals, grid.select(evals.columns)])
    return both.filter(accuracy.is_not_null() & accuracy.is_finite()).sort("clock_s", maintain_order=True)


def _floats(column: pl.Series) -> FloatArray:
    return column.to_numpy().astype(np.float64)


def _grouped(rounds: pl.DataFrame, column: str, width: int) -> pl.DataFrame:
    value = pl.col(column).cast(pl.Float64)
    return (
        rounds.filter(value.is_not_null() & value.is_finite())
        .group_by(((pl.col("round") - 1) // width).alias("group"))
        .agg(pl.col("round").mean().cast(pl.Float64), value.mean().alias("value"))
        .sort("group")
    )


def _beyond(each: Curve, end: float) -> Curve:
    """The part of a curve after `end`, joined to where the mean stops."""
    after = each.x > end
    x, y = np.concatenate([[end], each.x[after]]), np.concatenate([[np.interp(end, each.x, each.y)], each.y[after]])
    return Curve(each.seed, x, y)


def _thinned(each: Curve, points: int) -> Curve:
    """At most so many points of a curve, the first and the last among them."""
    if len(each.x) <= points:
        return each
    kept = np.unique(np.linspace(0, len(each.x) - 1, points).round().astype(int))
    return Curve(each.seed, each.x[kept], each.y[kept])
