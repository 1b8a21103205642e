"""The rows of a table of methods: which are about the whole target, and the figures in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from fedbalancer.paper.verdict import Ours

Row = Mapping[str, Any]


def full_target(methods: pl.DataFrame) -> pl.DataFrame:
    """The rows about the whole target, not a share of it."""
    return methods.filter(pl.col("target_share") == 1.0)


def rows_of(methods: pl.DataFrame) -> Iterator[Row]:
    return full_target(methods).iter_rows(named=True)


def speedup_of(row: Row) -> Ours:
    """By the paper's rule a method that never reached the target has no speed-up that was measured."""
    if row["rule"] == "paper" and not row["reached"]:
        return Ours(None)
    low = None if row["ratio_low"] is None else max(row["ratio_low"], 0.0)
    return Ours(row["ratio"], low, row["ratio_high"], row["ratio_bound"])


def accuracy_of(row: Row) -> Ours:
    """With few seeds the interval of a mean goes beyond what an accuracy can be: it is cut there."""
    if row["accuracy_low"] is None:
        return Ours(row["accuracy"])
    return Ours(row["accuracy"], max(row["accuracy_low"], 0.0), min(row["accuracy_high"], 1.0))
