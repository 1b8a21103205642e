"""Who took part and where the time went, counted from the rows of clients.parquet without loading them all."""

from __future__ import annotations

import polars as pl

from fedbalancer.report.style import PHASES
from fedbalancer.store.rows import JOINED
from fedbalancer.types import UNDER_WAY

OUTCOMES = {"outcome": pl.String, "clients": pl.Int64}
SELECTIONS = {"client": pl.String, "device": pl.String, "times": pl.Int64}
TIMES = {"device": pl.String, "clients": pl.Int64, **dict.fromkeys(PHASES, pl.Float64)}
_RECORDED = [name for name in PHASES if name != "waiting_s"]


def outcomes(clients: pl.LazyFrame) -> pl.LazyFrame:
    """How many selected clients ended in which way, over all rounds. Of one that was under way at the end of its round,
    the row of the round that its report joined tells."""
    ended = clients.filter(pl.col("outcome") != UNDER_WAY)
    return ended.group_by("outcome").agg(pl.len().alias("clients")).sort("outcome")


def selections(clients: pl.LazyFrame, population: pl.DataFrame) -> pl.LazyFrame:
    """How often each client was selected. With a `population` (client, device) those that never were count too."""
    times = clients.filter(pl.col("outcome") != JOINED).group_by("client").agg(pl.len().cast(pl.Int64).alias("times"))
    if population.height:
        times = population.lazy().join(times, on="client", how="left").with_columns(pl.col("times").fill_null(0))
    else:
        times = times.with_columns(device=pl.lit(""))
    return times.select(list(SELECTIONS)).sort("times", "client", descending=[True, False])


def times(clients: pl.LazyFrame, rounds: pl.DataFrame, population: pl.DataFrame) -> pl.LazyFrame:
    """The mean seconds that a selected device spends in each phase of a round, by class of device. It waits when it is
    done, or given up, and the round is not over; a device that was not available does not count."""
    lasted = rounds.lazy().select("round", lasted_s=pl.col("end_s") - pl.col("start_s"))
    busy = pl.sum_horizontal(_RECORDED)
    # The times of one that was under way are in the row of the round that its report joined.
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
