"""Statistics about clients: participation, time per phase, rejected reports, and fairness.

The functions that take a lazy frame aggregate `clients.parquet` without loading all of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from fedbalancer.core.metrics import ACCURACY, Metric
from fedbalancer.core.types import UNDER_WAY
from fedbalancer.core.types.round import total
from fedbalancer.reporting.style import PHASES
from fedbalancer.store.rows import JOINED, TEST_DATA, TRAIN_DATA

OUTCOMES = {"outcome": pl.String, "clients": pl.Int64}
SELECTIONS = {"client": pl.String, "device": pl.String, "times": pl.Int64}
TIMES = {"device": pl.String, "clients": pl.Int64, **dict.fromkeys(PHASES, pl.Float64)}
REJECTED = {"client": pl.String, "reports": pl.Int64, "first_round": pl.Int64, "why": pl.String}
REJECTED_HEADER = ("Method", "Seed", "Client", "Rejected reports", "First round", "Reason")
MOST_REJECTED = 20
"""Maximum number of clients with rejected reports that a page lists per run."""
VALUE = "value"
"""Column with the values of the metric that fairness compares."""
_RECORDED = [name for name in PHASES if name != "waiting_s"]


def count_outcomes(clients: pl.LazyFrame) -> pl.LazyFrame:
    """Count how the rounds of selected clients ended, over all rounds.

    A client that was still working when its round closed is counted once, in the round that its report joined.
    """
    ended = clients.filter(pl.col("outcome") != UNDER_WAY)
    return ended.group_by("outcome").agg(pl.len().alias("clients")).sort("outcome")


def count_selections(clients: pl.LazyFrame, population: pl.DataFrame) -> pl.LazyFrame:
    """Count how often each client was selected, most selected first.

    Args:
        clients: The rows of `clients.parquet`.
        population: All clients with their device (client, device). If empty, clients never selected are missing.
    """
    times = clients.filter(pl.col("outcome") != JOINED).group_by("client").agg(pl.len().cast(pl.Int64).alias("times"))
    if population.height:
        times = population.lazy().join(times, on="client", how="left").with_columns(pl.col("times").fill_null(0))
    else:
        times = times.with_columns(device=pl.lit(""))
    return times.select(list(SELECTIONS)).sort("times", "client", descending=[True, False])


def average_phase_times(clients: pl.LazyFrame, rounds: pl.DataFrame, population: pl.DataFrame) -> pl.LazyFrame:
    """Average the seconds that a selected device spends in each phase of a round, by device class.

    A device waits from when it finishes or gives up until the round closes. Unavailable devices do not count.

    Args:
        clients: The rows of `clients.parquet`.
        rounds: The rows of `rounds.parquet`.
        population: All clients with their device (client, device); may be empty.
    """
    lasted = rounds.lazy().select("round", lasted_s=pl.col("end_s") - pl.col("start_s"))
    busy = pl.sum_horizontal(_RECORDED)
    # The times of a client that was still working are in the row of the round that its report joined.
    rows = clients.filter(~pl.col("outcome").is_in(["unavailable", UNDER_WAY])).join(lasted, on="round", how="inner")
    rows = rows.with_columns(waiting_s=(pl.col("lasted_s") - busy).clip(lower_bound=0.0))
    if population.height:
        rows = rows.join(population.lazy(), on="client", how="left").with_columns(pl.col("device").fill_null(""))
    else:
        rows = rows.with_columns(device=pl.lit(""))
    means = [pl.col(name).mean().cast(pl.Float64) for name in PHASES]
    return (
        rows.group_by("device").agg(pl.len().cast(pl.Int64).alias("clients"), *means).select(list(TIMES)).sort("device")
    )


def count_rejected(clients: pl.LazyFrame) -> pl.LazyFrame:
    """Count the rejected reports per client with the first reason; clients with most rejections first."""
    rejected = clients.filter(pl.col("why") != "").sort("round").group_by("client")
    counts = rejected.agg(
        pl.len().cast(pl.Int64).alias("reports"), pl.col("round").first().alias("first_round"), pl.col("why").first()
    )
    return counts.sort(["reports", "client"], descending=[True, False])


def list_rejected(method: str, seed: int, rejected: pl.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of the rejected reports of one run, under `REJECTED_HEADER`."""
    for client, reports, first_round, why in rejected.head(MOST_REJECTED).iter_rows():
        yield method, str(seed), client, str(reports), str(first_round), why
    if rejected.height > MOST_REJECTED:
        others = rejected["reports"][MOST_REJECTED:]
        yield method, str(seed), f"{len(others)} more", str(others.sum()), "", ""


@dataclass(frozen=True)
class Fairness:
    """Fairness of a method between the clients of one run, at the end of its budget; None where unknown.

    Attributes:
        median: Median over clients of the metric of the model on the client's data.
        worst_decile: Its 10th percentile or, if lower is better, its 90th percentile.
        jain: Jain's index of the metric (1: equal for all clients, 1/n: all for one client).
        gini: Gini coefficient of the number of selections per client (0: equal, 1: one client has all).
        never: Share of clients that were never selected.
        places: Minimum, median and maximum number of selections per client.
        by_device: By device class: its share of the clients, its share of the selections (`places`) and the median
            of the metric over its clients.
        tested_on: The client's data: "test" (own test data) or "train" (training data). If some clients have test data,
            only these clients count.
    """

    median: float | None = None
    worst_decile: float | None = None
    jain: float | None = None
    gini: float | None = None
    never: float | None = None
    places: Sequence[float] | None = None
    by_device: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    tested_on: str = TRAIN_DATA


def measure_fairness(population: pl.DataFrame | None, metric: Metric = ACCURACY) -> Fairness | None:
    """Compute the fairness of a run.

    Args:
        population: A row per client with the metrics, `selected` (number of rounds) and `device`; `tested_on` names
            the data of the evaluation.
        metric: The metric to compare.

    Returns:
        The fairness, or None if no population was recorded.
    """
    if population is None or not population.height:
        return None
    population, tested_on = _select_tested(population, metric)
    values, selected = population[VALUE].drop_nulls().to_numpy(), population["selected"]
    places = [int(selected.min()), float(selected.median()), int(selected.max())]  # type: ignore[arg-type]
    evaluated = len(values) > 0
    return Fairness(
        median=float(np.median(values)) if evaluated else None,
        worst_decile=float(np.quantile(values, 0.1 if metric.higher_is_better else 0.9)) if evaluated else None,
        jain=jain(values) if evaluated else None,
        gini=gini(selected.to_numpy()),
        never=float((selected == 0).mean()),  # type: ignore[arg-type]
        places=places,
        by_device=_measure_devices(population, metric),
        tested_on=tested_on,
    )


def _select_tested(population: pl.DataFrame, metric: Metric) -> tuple[pl.DataFrame, str]:
    """Add the column `VALUE`: the metric on test data, or on training data if no client has test data."""
    known = metric.name in population.columns
    value = pl.col(metric.name).fill_nan(None) if known else pl.lit(None, pl.Float64)
    if "tested_on" not in population.columns or not (population["tested_on"] == TEST_DATA).any():
        return population.with_columns(value.alias(VALUE)), TRAIN_DATA
    return population.with_columns(pl.when(pl.col("tested_on") == TEST_DATA).then(value).alias(VALUE)), TEST_DATA


def mean_fairness(runs: Sequence[Fairness]) -> Fairness:
    """Average the fairness of several runs, also by device class; `places` is not averaged."""
    devices = sorted({device for run in runs for device in run.by_device})
    by_device = {device: [run.by_device[device] for run in runs if device in run.by_device] for device in devices}
    parts = dict.fromkeys(part for run in runs for device in run.by_device.values() for part in device)
    return Fairness(
        median=_mean(run.median for run in runs),
        worst_decile=_mean(run.worst_decile for run in runs),
        jain=_mean(run.jain for run in runs),
        gini=_mean(run.gini for run in runs),
        never=_mean(run.never for run in runs),
        by_device={
            device: {part: _mean(values.get(part) for values in by_device[device]) for part in parts}
            for device in devices
        },
        tested_on=TEST_DATA if any(run.tested_on == TEST_DATA for run in runs) else TRAIN_DATA,
    )


def jain(values: ArrayLike) -> float:
    """Compute Jain's fairness index: (sum x)**2 / (n * sum x**2).

    Example:
        >>> jain([0.5, 0.5]), jain([1.0, 0.0])
        (1.0, 0.5)
    """
    array = np.asarray(values, dtype=float)
    squares = float((array**2).sum())
    return float(array.sum()) ** 2 / (len(array) * squares) if squares else 1.0


def gini(values: ArrayLike) -> float:
    """Compute the Gini coefficient: half the mean absolute difference between two clients, divided by the mean.

    Example:
        >>> gini([3, 3, 3]), gini([0, 0, 0, 8])
        (0.0, 0.75)
    """
    array = np.sort(np.asarray(values, dtype=float))
    total, count = float(array.sum()), len(array)
    if not total:
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ array / (count * total))


def add_selections(population: pl.DataFrame, rounds: pl.DataFrame, clients: pl.LazyFrame) -> pl.DataFrame:
    """Add the column `selected`: the number of rounds each client was selected for before it was evaluated.

    Args:
        population: The rows of `population.parquet`.
        rounds: The rows of `rounds.parquet`.
        clients: The rows of `clients.parquet`.
    """
    clock_s = population["clock_s"].max() if population.height else 0.0
    last = rounds.filter(pl.col("end_s") <= clock_s)["round"].max()
    counts = (
        clients.filter(pl.col("round") <= (last or 0), pl.col("outcome") != JOINED)
        .group_by("client")
        .agg(pl.len().alias("selected"))
        .collect()
    )
    joined = population.join(counts, on="client", how="left", maintain_order="left")
    return joined.with_columns(pl.col("selected").fill_null(0).cast(pl.Int64))


def _measure_devices(population: pl.DataFrame, metric: Metric) -> dict[str, dict[str, Any]]:
    clients, places = population.height, max(int(population["selected"].sum()), 1)
    devices = population.group_by("device").agg(pl.len(), pl.col("selected").sum(), pl.col(VALUE).median())
    return {
        device: {"clients": count / clients, "places": selected / places, metric.name: median}
        for device, count, selected, median in devices.sort("device").iter_rows()
        if device
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return total(known) / len(known) if known else None
