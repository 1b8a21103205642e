"""Scores of the benchmark, from the rows of its results: `runs.parquet`, `trials.parquet` and `protocol.json`.

The reference of a cell and seed is the tuned FedAvg variant with the best final accuracy, and its final accuracy is the
target. A run that never holds the target is censored at its last second, as in a comparison.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedbalancer.core.errors import RunFolderError
from fedbalancer.reporting.leaderboard_entries import is_ours
from fedbalancer.reporting.ratio import Arrival, Estimate, Ratio, paired_ratio
from fedbalancer.reporting.rule import is_fedavg

RUNS, TRIALS, PROTOCOL = "runs.parquet", "trials.parquet", "protocol.json"
DEFAULT, TUNED, WITH_GIFTS, UNTUNED = "default", "tuned", "with gifts", "untuned"
COLUMNS = (DEFAULT, TUNED)


@dataclass(frozen=True)
class Entry:
    """A method in one cell: with its defaults, as tuned, with the gifts, or with other settings without tuning.

    Args:
        cell: The cell.
        method: The method, without settings in brackets; the full name if it is untuned.
        column: default, tuned, with gifts or untuned.
        name: The full name of the method that ran.
        owner: Who submitted it; "" for this project.
        rows: The row of every seed.
        arrivals: When each seed reached each share of the target.
        reference: When the reference of each seed reached each share of the target.
    """

    cell: str
    method: str
    column: str
    name: str
    owner: str
    rows: Mapping[int, Mapping[str, Any]]
    arrivals: Mapping[float, Mapping[int, Arrival]]
    reference: Mapping[float, Mapping[int, Arrival]]

    @cached_property
    def over(self) -> Mapping[float, Ratio]:
        """Speed-up over the reference, by share of the target."""
        return {
            share: paired_ratio([(self.reference[share][seed], mine) for seed, mine in arrivals.items()])
            for share, arrivals in self.arrivals.items()
        }

    @property
    def label(self) -> str:
        """The method, with its owner if it was submitted."""
        return f"{self.method} ({self.owner})" if self.owner else self.method

    @property
    def is_ours(self) -> bool:
        """Whether this is the project's own method."""
        return not self.owner and is_ours(self.method)

    @property
    def accuracy(self) -> Estimate:
        """Accuracy at the end of the budget."""
        return Estimate.of([row["final"] for row in self.rows.values() if row["final"] is not None])

    @property
    def worst_decile(self) -> Estimate:
        """Accuracy of the worst decile of clients at the end of the budget."""
        return Estimate.of([row["worst_decile"] for row in self.rows.values() if row["worst_decile"] is not None])

    def reached(self, share: float) -> int:
        """Return how many seeds reached a share of the target."""
        return sum(arrival.reached for arrival in self.arrivals[share].values())

    def cost(self, share: float, *columns: str) -> tuple[float | None, bool]:
        """Return the mean cost up to a share of the target, and whether all seeds reached it.

        Args:
            share: The share of the target.
            columns: Columns of costs, which are added up.
        """
        costs = []
        for seed, arrival in self.arrivals[share].items():
            row = self.rows[seed]
            last = np.searchsorted(row["at_s"], arrival.seconds * (1 + 1e-9), side="right") - 1
            values = [row[column][last] for column in columns] if last >= 0 else []
            if values and None not in values:
                costs.append(sum(values))
        everyone = self.reached(share) == len(self.rows)
        return (float(np.mean(costs)) if costs else None), everyone


@dataclass(frozen=True)
class Board:
    """The results of a suite.

    Args:
        protocol: The content of `protocol.json`.
        entries: All entries, cell by cell.
        trials: The rows of all trials.
        runs: The rows of all scored runs.
    """

    protocol: Mapping[str, Any]
    entries: tuple[Entry, ...]
    trials: pl.DataFrame
    runs: pl.DataFrame

    @property
    def targets(self) -> tuple[float, ...]:
        """Shares of the reference's final accuracy, the main one first."""
        return tuple(self.protocol["targets"])

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The cells with results, in the order of the suite."""
        present = {entry.cell for entry in self.entries}
        return tuple(cell["name"] for cell in self.protocol["cells"] if cell["name"] in present)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The labels of the tuned methods; FedAvg first, ours last."""
        tuned = [entry for entry in self.entries if entry.column == TUNED]
        order = sorted(tuned, key=lambda entry: (entry.is_ours, not is_fedavg(entry.method)))
        return tuple(dict.fromkeys(entry.label for entry in order))

    def find(self, cell: str, method: str, column: str = TUNED) -> Entry | None:
        """Return an entry; None if there is none.

        Args:
            cell: Name of the cell.
            method: Label of the method.
            column: default, tuned, with gifts or untuned.
        """
        for entry in self.entries:
            if (entry.cell, entry.label, entry.column) == (cell, method, column):
                return entry
        return None

    def ratio(self, entry: Entry, other: Entry, share: float) -> Ratio:
        """Return how many times as fast one entry is as another, on the seeds that both have with the same data.

        Args:
            entry: The entry.
            other: The entry to compare with.
            share: The share of the target.
        """
        return paired_ratio(_pairs(entry, other, share))

    def best_peer(self, cell: str, share: float, column: str = TUNED) -> Entry | None:
        """Return the fastest method of a cell that is not ours: most seeds at the target, then the shortest time.

        Args:
            cell: Name of the cell.
            share: The share of the target.
            column: default, tuned or with gifts.
        """
        peers = [entry for entry in self.entries if entry.cell == cell and entry.column == column and not entry.is_ours]
        return min(peers, key=lambda entry: _slowness(entry, share), default=None)

    def overall(
        self, method: str, column: str, share: float, peer: str = "", within: Sequence[str] | None = None
    ) -> tuple[Ratio, int]:
        """Return the speed-up of a method over all cells, geometric mean over the pairs of runs, and the cells.

        Args:
            method: Label of the method.
            column: default, tuned or untuned.
            share: The share of the target.
            peer: Label of a tuned method to compare with, or "best" for the best tuned peer of each cell. Default: the
                reference.
            within: Names of cells. Default: all.
        """
        pairs: list[tuple[Arrival, Arrival]] = []
        cells = 0
        for cell in self.cells if within is None else within:
            entry = self.find(cell, method, column)
            other = self.best_peer(cell, share) if peer == "best" else self.find(cell, peer) if peer else None
            if entry is None or (peer and other is None):
                continue
            cells += 1
            if other is not None:
                pairs += _pairs(entry, other, share)
            else:
                pairs += [(entry.reference[share][seed], mine) for seed, mine in entry.arrivals[share].items()]
        return paired_ratio(pairs), cells

    def profile(self, share: float, column: str = TUNED) -> dict[str, list[float]]:
        """Return the performance profile (Dolan and Moré): for each method the factors of all cells and seeds.

        The factor is the method's time to the target divided by the shortest time of any method on the same cell and
        seed; infinite if it never reached the target. Each cell has the same weight, and a method without runs in a
        cell has no factors there.

        Args:
            share: The share of the target.
            column: default, tuned or with gifts.
        """
        factors: dict[str, list[float]] = {method: [] for method in self.methods}
        for cell in self.cells:
            entries = [entry for method in self.methods if (entry := self.find(cell, method, column)) is not None]
            for seed in sorted({seed for entry in entries for seed in entry.arrivals[share]}):
                times = {
                    entry.label: arrival.seconds if arrival.reached else math.inf
                    for entry in entries
                    if (arrival := entry.arrivals[share].get(seed)) is not None
                }
                best = min(times.values(), default=math.inf)
                for label, seconds in times.items():
                    factors[label].append(seconds / best if math.isfinite(best) else math.inf)
        return {method: sorted(values) for method, values in factors.items() if values}

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain values."""
        return {
            "suite": self.protocol["suite"],
            "cells": {
                cell: {
                    f"{entry.label}, {entry.column}": {
                        "name": entry.name,
                        "seeds": len(entry.rows),
                        "speedup": {f"{share:g}": _plain(entry.over[share]) for share in self.targets},
                        "reached": entry.reached(self.targets[0]),
                        "accuracy": entry.accuracy.mean,
                        "worst_decile": entry.worst_decile.mean,
                    }
                    for entry in self.entries
                    if entry.cell == cell
                }
                for cell in self.cells
            },
        }


def load_board(folder: Path) -> Board:
    """Read the results of a benchmark.

    Args:
        folder: The folder with runs.parquet, trials.parquet and protocol.json.

    Raises:
        RunFolderError: If a file is missing or damaged.
    """
    try:
        protocol = json.loads((folder / PROTOCOL).read_text(encoding="utf-8"))
        runs, trials = pl.read_parquet(folder / RUNS), pl.read_parquet(folder / TRIALS)
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{folder} has no benchmark results yet: there is no {Path(str(error.filename)).name}; run: fedbalancer "
            "benchmark run"
        ) from error
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise RunFolderError(f"{folder} has damaged benchmark results: {error}") from error
    return Board(protocol, tuple(_entries(protocol, runs, trials)), trials, runs)


def _entries(protocol: Mapping[str, Any], runs: pl.DataFrame, trials: pl.DataFrame) -> Iterable[Entry]:
    """Yield the entries of every cell and owner. An owner's methods are scored against FedAvg's runs of the owner."""
    rows: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for row in runs.iter_rows(named=True):
        rows.setdefault((row["cell"], row["owner"], row["method"]), {})[row["seed"]] = row
    chosen: dict[tuple[str, str], dict[str, str]] = {}
    for row in trials.filter(pl.col("chosen")).sort("number", descending=True).iter_rows(named=True):
        chosen.setdefault((row["cell"], row["owner"]), {})[row["method"]] = row["trial"]
    for cell in (each["name"] for each in protocol["cells"]):
        for owner in sorted({owner for place, owner in chosen if place == cell}):
            best = chosen[cell, owner]
            fedavg = [rows.get((cell, owner, best[name]), {}) for name in sorted(best) if is_fedavg(name)]
            references = _references([each for each in fedavg if each])
            scored = [name for place, whose, name in sorted(rows) if (place, whose) == (cell, owner)]
            for method, column, name in _names(protocol, best, scored):
                mine = {seed: row for seed, row in rows.get((cell, owner, name), {}).items() if seed in references}
                if mine and not (owner and is_fedavg(method)):
                    yield _entry(protocol, (cell, method, column, name, owner), mine, references)


def _names(
    protocol: Mapping[str, Any], best: Mapping[str, str], scored: Iterable[str]
) -> Iterable[tuple[str, str, str]]:
    """Yield method, column and full name of what a cell and owner may have."""
    yield from ((name, DEFAULT, name) for name in best)
    yield from ((name, TUNED, best[name]) for name in best)
    yield from ((name, WITH_GIFTS, name) for name in scored if name.endswith(protocol["gifts"]))
    yield from ((name, UNTUNED, name) for name in protocol.get("untuned", ()))


def _references(fedavg: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[int, Mapping[str, Any]]:
    """Return the reference's row of every seed on which all FedAvg variants have a run."""
    seeds = set.intersection(*(set(each) for each in fedavg)) if fedavg else set()
    return {seed: max((each[seed] for each in fedavg), key=_final) for seed in sorted(seeds)}


def _entry(
    protocol: Mapping[str, Any],
    names: tuple[str, str, str, str, str],
    rows: Mapping[int, Mapping[str, Any]],
    references: Mapping[int, Mapping[str, Any]],
) -> Entry:
    arrivals, reference = {}, {}
    for share in protocol["targets"]:
        levels = {seed: share * _final(references[seed]) for seed in rows}
        arrivals[share] = {seed: _arrival(row, levels[seed], protocol["extend"]) for seed, row in rows.items()}
        reference[share] = {seed: _arrival(references[seed], levels[seed], protocol["extend"]) for seed in rows}
    return Entry(*names, rows, arrivals, reference)


def _pairs(entry: Entry, other: Entry, share: float) -> list[tuple[Arrival, Arrival]]:
    theirs, mine = other.arrivals[share], entry.arrivals[share]
    return [
        (theirs[seed], mine[seed])
        for seed in mine
        if seed in theirs and entry.rows[seed]["data"] == other.rows[seed]["data"]
    ]


def _arrival(row: Mapping[str, Any], target: float, extend: float) -> Arrival:
    """Return when a run held a target. A run that failed counts as one that ran to the end."""
    for at_s, level in zip(row["at_s"], row["level"], strict=True):
        if level is not None and level >= target and at_s > 0:
            return Arrival(at_s)
    last_s = row["end_s"] if row["status"] == "done" else extend * row["budget_s"]
    return Arrival(max(last_s, row["budget_s"]), reached=False)


def _final(row: Mapping[str, Any]) -> float:
    return float(row["final"]) if row["final"] is not None else -math.inf


def _slowness(entry: Entry, share: float) -> tuple[int, float]:
    arrivals = list(entry.arrivals[share].values())
    return -sum(a.reached for a in arrivals), float(np.mean(np.log([max(a.seconds, 1e-9) for a in arrivals])))


def _plain(ratio: Ratio) -> dict[str, Any]:
    return {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "bound": ratio.bound, "seeds": ratio.seeds}
