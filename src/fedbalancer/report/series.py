"""The lines that figures and page draw: a mean over seeds with a band from the lowest to the highest seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedbalancer.report.folders import Results, StoredRun
from fedbalancer.types import FloatArray

TIME_POINTS = 240
ROUND_POINTS = 150
"""More rounds than this are averaged in groups, so that a long run stays readable and its page small."""

NOISY_POINTS = 20
"""The same for a column that jumps from round to round."""


@dataclass(frozen=True, eq=False)
class Band:
    """A line over `x`, and between which values the seeds lie."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    seeds: int


@dataclass(frozen=True)
class Panel:
    """A column of rounds.parquet that is drawn over rounds, on the page and as a figure; `absent` is what a method that
    has only zeros in it, or nothing finite, does without."""

    name: str
    column: str
    title: str
    axis: str
    about: str
    absent: str = ""
    points: int = ROUND_POINTS

    def width(self, results: Results) -> int:
        """How many rounds one point stands for, the same for all methods."""
        return max((-(-run.rounds.height // self.points) for run in results.runs), default=1) or 1

    def bands(self, results: Results) -> dict[str, Band | None]:
        """The line of every method, None where it has none."""
        bands = {m: round_band(results.of(m), self.column, self.width(results)) for m in results.methods}
        return {m: used(band) for m, band in bands.items()} if self.absent else bands


PANELS = (
    Panel(
        "completed", "completed", "Completed clients per round", "clients", "Clients whose update arrived in time.",
        points=NOISY_POINTS,
    ),
    Panel(
        "deadline", "deadline_s", "Deadline per round", "deadline (s)", "When the server closes the round.", "deadline",
    ),
    Panel(
        "threshold", "loss_threshold", "Loss threshold per round", "loss threshold",
        "Clients prefer samples with a loss at or above it.", "threshold",
    ),
)  # fmt: skip


def accuracy_bands(results: Results) -> dict[str, Band | None]:
    """Accuracy over seconds, for every method."""
    return {method: accuracy_band(results.of(method)) for method in results.methods}


def accuracy_band(runs: Sequence[StoredRun]) -> Band | None:
    """Accuracy over seconds, each seed interpolated on one grid over the time that all of them cover."""
    curves = [_finite(run.curve.evals, "clock_s", "accuracy") for run in runs]
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if len(curves) == 1:
        return _band(curves[0][0], curves[0][1][None, :])
    grid = np.linspace(start, max(start, end), TIME_POINTS)
    return _band(grid, np.stack([np.interp(grid, x, y) for x, y in curves]))


def round_band(runs: Sequence[StoredRun], column: str, width: int = 1) -> Band | None:
    """A column of rounds.parquet over the rounds that all runs have, as means of `width` rounds; rounds without a
    finite value are left out."""
    lasts = [int(run.rounds["round"].max()) for run in runs if run.rounds.height]  # type: ignore[arg-type]
    if not lasts:
        return None
    frames = [
        run.rounds.filter((pl.col("round") <= min(lasts)) & pl.col(column).is_not_null() & pl.col(column).is_finite())
        .group_by(((pl.col("round") - 1) // width).alias("group"))
        .agg(pl.col("round").mean().cast(pl.Float64), pl.col(column).mean().cast(pl.Float64).alias("value"))
        for run in runs
        if run.rounds.height
    ]
    value = pl.col("value")
    both = pl.concat(frames).group_by("group").agg(
        pl.col("round").mean(), value.mean().alias("mean"), value.min().alias("low"), value.max().alias("high")
    ).sort("group")  # fmt: skip
    if not both.height:
        return None
    x, mean, low, high = (both[name].to_numpy() for name in ("round", "mean", "low", "high"))
    return Band(x, mean, low, high, len(lasts))


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


def _finite(frame: pl.DataFrame, x: str, y: str) -> tuple[FloatArray, FloatArray]:
    kept = frame.filter(pl.col(y).is_not_null() & pl.col(y).is_finite()).sort(x)
    return kept[x].to_numpy().astype(np.float64), kept[y].to_numpy().astype(np.float64)


def _band(x: FloatArray, values: FloatArray) -> Band:
    return Band(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(values))
