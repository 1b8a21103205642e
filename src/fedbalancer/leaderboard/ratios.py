"""Entries from tables of ratios, which are made beside the paper's items (those of `tempo`: benchmarks/tempo.py).

A table is known by its columns, wherever it lies; those with others are left aside. All of its ratios over the best
FedAvg are in the list of entries. On a board stand only those that can be compared with each other: on seeds that
`tempo` was not made with, of a task as it is, and over the best of the same FedAvg variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import polars as pl

from fedbalancer.errors import RunFolderError
from fedbalancer.leaderboard.entry import OURS, Entry, seeds_text
from fedbalancer.leaderboard.tables import METHODS, OWN, columns, reading, table
from fedbalancer.report.cells import shows_interval
from fedbalancer.report.rule import is_fedavg

OVER = "best fedavg"
WORDS, NUMBERS, COUNTS = ("comparison", "task", "method", "over"), ("ratio", "low", "high"), ("seeds", "reached")
NEVER_EMPTY = (*WORDS, "target_share", *COUNTS)
SHAPE: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys((*WORDS, "bound"), pl.String)
    | dict.fromkeys((*NUMBERS, "target_share", "accuracy", "worst_decile"), pl.Float64)
    | dict.fromkeys(COUNTS, pl.Int64)
)
SCALE, RULE = "small", "fair"
"""Of all these tables: the benchmark knows no other."""
REFERENCES = frozenset({"fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"})
"""The FedAvg variants of Table 1. The best of fewer is a lower reference, over which a ratio says something else."""
MADE_WITH = 10
"""So many seeds, from 0 on, are Table 1's; among them are those with which `tempo` was made."""
SERIES = f"which {OURS} was not made with"
FIRST_SEED: Mapping[str, int] = MappingProxyType({
    **{f"tempo/{name}": 10 for name in ("held-out", "peers", "unseen", "trials", "labels", "added", "pace", "power")},
    **{f"tempo/seeds-15-to-19/{name}": 15 for name in ("held-out", "trials")},
    **{f"tempo/{name}": 0 for name in ("parts", "gifts")},
})  # fmt: skip
"""The tables say how many seeds they have, not which. One that is not named here is in the list only."""


def read_ratios(folder: Path) -> list[Entry]:
    """The entries of all tables of ratios in a folder of results, one or two folders deep."""
    files = sorted(file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/*.parquet"))
    return [entry for file in files if _may_be(folder, file) for entry in _entries(folder, file)]


def _may_be(folder: Path, file: Path) -> bool:
    """What lies beside an item's table of methods is the item's, and what users added is theirs."""
    others = file.relative_to(folder).parts[0] == OWN or file.with_name(METHODS).exists()
    return not others and file.is_file() and columns(file) >= SHAPE.keys()


def _entries(folder: Path, file: Path) -> Iterator[Entry]:
    item = file.relative_to(folder).with_suffix("").as_posix()
    page = file.with_suffix(".md")
    link = quote((page if page.is_file() else file.parent).relative_to(folder).as_posix())
    rows = _rows(file)
    plain = {(row["comparison"], row["method"]) for row in rows if is_fedavg(row["method"])}
    for row in rows:
        references = {method for comparison, method in plain if comparison == row["comparison"]}
        yield _entry(row, item, link, alike=references == REFERENCES)


def _rows(file: Path) -> list[dict[str, Any]]:
    with reading(file):
        frame = table(file).select(pl.col(name).cast(kind) for name, kind in SHAPE.items())
        frame = frame.with_columns(pl.col(pl.Float64).fill_nan(None))
    if any(frame[name].null_count() for name in NEVER_EMPTY):
        raise RunFolderError(f"{file} is damaged: it has rows without {', '.join(NEVER_EMPTY)}")
    return frame.filter(pl.col("over") == OVER).to_dicts()


def _entry(row: Mapping[str, Any], item: str, link: str, alike: bool) -> Entry:
    """`alike`: whether its comparison has the references of the board. What is not of the task as it is has the name of
    its comparison in place of its seeds."""
    as_it_is, seeds = row["comparison"] == row["task"], row["seeds"]
    first = FIRST_SEED.get(item) if as_it_is else None
    which = "" if first is None else seeds_text(first, first + seeds - 1)
    low, high = (row["low"], row["high"]) if shows_interval(seeds) else (None, None)
    return Entry(
        row["task"], row["method"], SCALE, rule=RULE, target_share=row["target_share"], seeds=seeds,
        reached=row["reached"], ratio=row["ratio"], ratio_low=low, ratio_high=high, ratio_bound=row["bound"] or "",
        accuracy=row["accuracy"], client_worst_decile=row["worst_decile"], item=item, link=link, first_seed=first,
        group=which if as_it_is else row["comparison"],
        series=SERIES if alike and first is not None and first >= MADE_WITH else "",
    )  # fmt: skip
