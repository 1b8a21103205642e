"""Whose reports were not believed, and why."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

REFUSED = {"client": pl.String, "reports": pl.Int64, "first_round": pl.Int64, "why": pl.String}
"""Columns of `refused`."""
SHOWN = 20
"""Clients of one run that a page names."""
HEADER = ("Method", "Seed", "Client", "Reports left out", "First in round", "What was wrong with it")


def refused(clients: pl.LazyFrame) -> pl.LazyFrame:
    """Of the rows of clients.parquet, a row per client of whom reports were left out: how many, and the first's fault;
    the worst clients first."""
    left_out = clients.filter(pl.col("why") != "").sort("round").group_by("client")
    counted = left_out.agg(
        pl.len().cast(pl.Int64).alias("reports"), pl.col("round").first().alias("first_round"), pl.col("why").first()
    )
    return counted.sort(["reports", "client"], descending=[True, False])


def refused_rows(method: str, seed: int, found: pl.DataFrame) -> Iterator[tuple[str, ...]]:
    """The cells of a page's table."""
    for client, reports, first_round, why in found.head(SHOWN).iter_rows():
        yield method, str(seed), client, str(reports), str(first_round), why
    if found.height > SHOWN:
        yield method, str(seed), f"{found.height - SHOWN} more", str(found["reports"][SHOWN:].sum()), "", ""
