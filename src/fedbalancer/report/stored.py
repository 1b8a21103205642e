"""What a report knows of runs: the curve of each, what else was found of it, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fedbalancer.report.participation import OUTCOMES, SELECTIONS, TIMES
from fedbalancer.report.refused import REFUSED
from fedbalancer.store import ClassRow, EvalRow, PopulationRow, PrivacyRow, RoundRow, schema_of
from fedbalancer.store.comparison import TARGETS
from fedbalancer.store.rows import ROUNDS as BY_ROUNDS

EVALS, _OF_ROUND = schema_of(EvalRow), schema_of(RoundRow)
POPULATION = {**schema_of(PopulationRow), "selected": int}
ROUNDS = {
    name: _OF_ROUND[name]
    for name in (
        "round", "start_s", "end_s", "deadline_s", "loss_threshold", "loss_threshold_ratio", "deadline_ratio",
        "selected", "completed",
    )
}  # fmt: skip
MORE = {
    name: _OF_ROUND.get(name, float)
    for name in (
        "down_bytes", "up_bytes", "device_s", "deadline_low_s", "deadline_high_s", "loss_low", "loss_mean", "loss_high",
        "seen_loss_p10", "seen_loss_p50", "seen_loss_p90",
    )
}  # fmt: skip
"""Columns of rounds.parquet that older versions did not record: null where they are absent."""
COSTS = ("sample_passes", "device_s", "down_bytes", "up_bytes")
"""What a round costs, by the columns of rounds.parquet."""
TRAFFIC = {name: _OF_ROUND[name] for name in ("start_s", "end_s", *COSTS)}
CLASSES = schema_of(ClassRow)
PRIVACY = {
    name: schema_of(PrivacyRow)[name] for name in ("client", "releases", "epsilon", "model_epsilon", "whole_epsilon")
}


@dataclass(frozen=True, eq=False)
class RunCurve:
    """What scoring needs of one run: its evaluations by rounds (round, start_s, clock_s, accuracy), its status, the
    clock at the end of its last round (None: that of its last evaluation), its traffic (start_s, end_s and the costs
    of every round), the evaluations on its grid of seconds, and its population with how often each client was selected.
    The last three are None if the run did not record them."""

    method: str
    seed: int
    evals: pl.DataFrame
    status: str = "done"
    end_s: float | None = None
    traffic: pl.DataFrame | None = None
    grid: pl.DataFrame | None = None
    population: pl.DataFrame | None = None

    @property
    def has_grid(self) -> bool:
        """Whether the run was evaluated on a grid of seconds."""
        return self.grid is not None and self.grid.height > 0

    @property
    def last_s(self) -> float:
        """How far the run has come on the simulated clock."""
        if self.end_s is not None:
            return self.end_s
        return float(self.evals["clock_s"].max() or 0.0) if self.evals.height else 0.0  # type: ignore[arg-type]

    @property
    def last_accuracy(self) -> float | None:
        """Of the last evaluation; None if there is none."""
        return self.evals["accuracy"][-1] if self.evals.height else None

    def covers(self, budget_s: float | None) -> bool:
        """Whether the run can be scored: it is done, or has come to the end of the budget."""
        return self.status == "done" or (budget_s is not None and self.last_s >= budget_s > 0)

    def spent(self, column: str, until_s: float, clock: str = "end_s") -> float | None:
        """Sum of a column of the traffic over the rounds that end (or, by `start_s`, start) by then; None if one of
        them did not record it."""
        if self.traffic is None or column not in self.traffic.columns:
            return None
        values = self.traffic.filter(pl.col(clock) <= until_s)[column]
        return None if values.null_count() else float(values.sum())


def by_schedule(evals: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Evaluations by rounds, and those on the grid of seconds. Older versions knew rounds only, and said nothing."""
    if "schedule" not in evals.columns:
        return evals, evals.clear()
    is_rounds = pl.col("schedule") == BY_ROUNDS
    return evals.filter(is_rounds), evals.filter(~is_rounds)


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run as found on disk."""

    curve: RunCurve
    why: str = ""
    rounds: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ROUNDS))
    outcomes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OUTCOMES))
    selections: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SELECTIONS))
    times: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIMES))
    manifest: Mapping[str, Any] = field(default_factory=dict)
    classes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLASSES))
    privacy: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PRIVACY))
    refused: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REFUSED))


@dataclass(frozen=True, eq=False)
class Results:
    """All that a report is made from. A single run is a comparison of one method on one seed. `rule` is that by which
    the runs were evaluated and stopped."""

    folder: Path
    task: str
    variant: str
    scale: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int | None
    budgets_s: Mapping[int, float]
    runs: tuple[StoredRun, ...]
    single: bool = False
    rule: str = "paper"
    targets: tuple[float, ...] = TARGETS

    @property
    def curves(self) -> tuple[RunCurve, ...]:
        return tuple(run.curve for run in self.runs)

    def of(self, method: str) -> tuple[StoredRun, ...]:
        """The runs of a method that belong in its curves: those that can be scored or, if none can, all."""
        mine = tuple(
            run for run in self.runs if run.curve.method == method and run.rounds.height + run.curve.evals.height
        )
        return tuple(run for run in mine if run.curve.covers(self.budgets_s.get(run.curve.seed))) or mine
