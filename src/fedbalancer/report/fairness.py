"""What a method did to its clients: how well the model serves each of them, and how often each was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from fedbalancer.store.rows import JOINED
from fedbalancer.sums import total


@dataclass(frozen=True)
class Fairness:
    """Over the clients of one run at the end of its budget; None where nothing is known.

    Accuracy of the model on each client's own data: its median, the worst decile (a tenth of the clients fare worse)
    and Jain's index (1: equal for all, 1/n: all for one). `gini` is of the places in rounds (0: equal, 1: all to one),
    `never` the share of clients that never got one, `places` min, median and max. `by_device` has for every class its
    share of the clients, its share of the places and its median accuracy.
    """

    median: float | None = None
    worst_decile: float | None = None
    jain: float | None = None
    gini: float | None = None
    never: float | None = None
    places: Sequence[float] | None = None
    by_device: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def fairness_of(population: pl.DataFrame | None) -> Fairness | None:
    """From a row per client: accuracy, selected (rounds for which it was chosen), device."""
    if population is None or not population.height:
        return None
    accuracy, selected = population["accuracy"].drop_nulls().to_numpy(), population["selected"]
    places = [int(selected.min()), float(selected.median()), int(selected.max())]  # type: ignore[arg-type]
    evaluated = len(accuracy) > 0
    return Fairness(
        median=float(np.median(accuracy)) if evaluated else None,
        worst_decile=float(np.quantile(accuracy, 0.1)) if evaluated else None,
        jain=jain(accuracy) if evaluated else None,
        gini=gini(selected.to_numpy()),
        never=float((selected == 0).mean()),  # type: ignore[arg-type]
        places=places,
        by_device=_by_device(population),
    )


def mean_fairness(found: Sequence[Fairness]) -> Fairness:
    """Means over runs, also by device class; of places there is none."""
    devices = sorted({device for each in found for device in each.by_device})
    of = {device: [each.by_device[device] for each in found if device in each.by_device] for device in devices}
    parts = ("clients", "places", "accuracy")
    return Fairness(
        median=_mean(each.median for each in found),
        worst_decile=_mean(each.worst_decile for each in found),
        jain=_mean(each.jain for each in found),
        gini=_mean(each.gini for each in found),
        never=_mean(each.never for each in found),
        by_device={device: {part: _mean(each[part] for each in of[device]) for part in parts} for device in devices},
    )


def jain(values: ArrayLike) -> float:
    """Jain's index of fairness: (sum x)**2 / (n * sum x**2).

    >>> jain([0.5, 0.5]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    found = np.asarray(values, dtype=float)
    squares = float((found**2).sum())
    return float(found.sum()) ** 2 / (len(found) * squares) if squares else 1.0


def gini(values: ArrayLike) -> float:
    """The Gini coefficient: half the mean difference between two clients, over the mean.

    >>> gini([3, 3, 3]), gini([0, 0, 0, 8])
    (0.0, 0.75)
    """
    found = np.sort(np.asarray(values, dtype=float))
    total, count = float(found.sum()), len(found)
    if not total:
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ found / (count * total))


def with_selections(population: pl.DataFrame, rounds: pl.DataFrame, clients: pl.LazyFrame) -> pl.DataFrame:
    """The population with `selected`: in how many rounds each client was chosen, up to when it was evaluated."""
    clock_s = population["clock_s"].max() if population.height else 0.0
    last = rounds.filter(pl.col("end_s") <= clock_s)["round"].max()
    counted = (
        clients.filter(pl.col("round") <= (last or 0), pl.col("outcome") != JOINED)
        .group_by("client")
        .agg(pl.len().alias("selected"))
        .collect()
    )
    joined = population.join(counted, on="client", how="left", maintain_order="left")
    return joined.with_columns(pl.col("selected").fill_null(0).cast(pl.Int64))


def _by_device(population: pl.DataFrame) -> dict[str, dict[str, Any]]:
    every, places = population.height, max(int(population["selected"].sum()), 1)
    found = population.group_by("device").agg(pl.len(), pl.col("selected").sum(), pl.col("accuracy").median())
    return {
        device: {"clients": count / every, "places": selected / places, "accuracy": accuracy}
        for device, count, selected, accuracy in found.sort("device").iter_rows()
        if device
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return total(known) / len(known) if known else None
