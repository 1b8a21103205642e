"""Items that compare methods: which ones, in which groups, and how the scores are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedbalancer.paper.item import Finding, Frames, Presentation, Table, Work
from fedbalancer.paper.measured import Group, measured
from fedbalancer.paper.picture import accuracy_figure
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.request import Request
from fedbalancer.paper.verdict import Ours

Row = Mapping[str, Any]
SCORES_NOTE = (
    "Speed-up: seconds of the reference until the target over those of the method, mean over seeds with its 95 % "
    "interval; reached: on how many seeds the target was reached at all."
)


@dataclass(frozen=True)
class Compared:
    """Methods in groups on any task. `found` says which figures of which row have a counterpart in the paper."""

    name: str
    title: str
    place: str
    groups: tuple[Group, ...]
    found: Callable[[Frames], Sequence[Finding]]
    tasks: tuple[str, ...] = ("har",)
    scale: str = "small"
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for group in self.groups for method in group.methods))

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(self.methods) * request.seeds

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, self.methods)

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        return measured(work, self.groups)

    def present(self, frames: Frames) -> Presentation:
        methods = frames["methods"]
        return Presentation(
            headline=headline(methods, self.groups[-1]),
            tables=[*score_tables(methods)],
            findings=self.found(frames),
            notes=self.notes,
            figures={self.name: accuracy_figure(frames["curves"])},
            json=result_json(methods),
        )


def full_target(methods: pl.DataFrame) -> pl.DataFrame:
    """The rows about the whole target, not a share of it."""
    return methods.filter(pl.col("target_share") == 1.0)


def rows_of(methods: pl.DataFrame) -> Iterator[Row]:
    return full_target(methods).iter_rows(named=True)


def speedup_of(row: Row) -> Ours:
    """A method that never reached the target has no speed-up that was measured."""
    return Ours(row["ratio"], row["ratio_low"], row["ratio_high"]) if row["reached"] else Ours(None)


def accuracy_of(row: Row) -> Ours:
    return Ours(row["accuracy"], row["accuracy_low"], row["accuracy_high"])


def interval_text(ours: Ours, digits: int) -> str:
    """A figure and its interval."""
    return Finding("", "", ours, None, None, digits).ours_text  # type: ignore[arg-type]


def score_tables(methods: pl.DataFrame) -> Iterator[Table]:
    """A table for every task and group."""
    several = methods["group"].n_unique() > 1
    for (task, group), mine in full_target(methods).group_by(["task", "group"], maintain_order=True):
        rows = [
            (
                row["method"], interval_text(speedup_of(row), 2) if row["reached"] else "never",
                f"{row['reached']}/{row['seeds']}", interval_text(accuracy_of(row), 3),
            )
            for row in mine.iter_rows(named=True)
        ]  # fmt: skip
        title = f"{task}{f', {group}' if several else ''}: target {mine['target'][0]:.3f}, {mine['budget_s'][0]:,.0f} s"
        yield Table(title, ("Method", "Speed-up", "Reached", "Final accuracy"), rows, SCORES_NOTE)


def headline(methods: pl.DataFrame, group: Group) -> str:
    """The last method of a group beside its reference, task by task."""
    last = group.methods[-1]
    said = []
    for row in (
        full_target(methods).filter((pl.col("group") == group.name) & (pl.col("method") == last)).iter_rows(named=True)
    ):
        ours = speedup_of(row)
        fast = f"{interval_text(ours, 2)} times as fast as the reference" if ours.mean else "never reached the target"
        said.append(f"{row['task']}: {last} {fast}, accuracy {interval_text(accuracy_of(row), 3)}")
    return "; ".join(said) + "." if said else "Nothing is scored yet."


def result_json(methods: pl.DataFrame) -> dict[str, Any]:
    """What `--json` prints: task, group, method, figures."""
    result: dict[str, Any] = {}
    for row in rows_of(methods):
        figures = {
            "speedup": {"mean": row["ratio"], "std": row["ratio_std"], "low": row["ratio_low"],
                        "high": row["ratio_high"], "reached": row["reached"]},
            "accuracy": {"mean": row["accuracy"], "std": row["accuracy_std"]},
        }  # fmt: skip
        result.setdefault(row["task"], {}).setdefault(row["group"], {})[row["method"]] = figures
    return result
