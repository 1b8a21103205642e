"""Items that compare methods: which ones, in which groups, and how the scores are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fedbalancer.paper.charts import compared_charts
from fedbalancer.paper.item import Finding, Frames, Presentation, Table, Work, figure_text
from fedbalancer.paper.measured import Group, measured
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.request import Request
from fedbalancer.paper.rows import Row, accuracy_of, full_target, rows_of, speedup_of
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting.plotting import accuracy_panels
from fedbalancer.reporting.rule import Rule
from fedbalancer.reporting.style import accuracy_text, size_text

SCORES_NOTE = (
    "Speed-up: seconds of the reference until a share of the target over those of the method, mean over seeds with its "
    "95 % interval (< and >: a bound, as a run never came there); reached: on how many seeds the whole target was. "
    "Device hours, sample passes and bytes are of all clients until the target. Client median, worst decile and Jain's "
    "index: accuracy of the final model on each client's own data."
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
    rule: Rule = "fair"
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
        return measured(work, self.groups).frames

    def present(self, frames: Frames) -> Presentation:
        methods, findings = frames["methods"], self.found(frames)
        points = headlines(methods, self.groups[-1])
        return Presentation(
            headline=joined(points),
            points=points,
            charts=compared_charts(methods, frames["scores"], frames["curves"], findings),
            tables=[*score_tables(methods)],
            findings=findings,
            notes=self.notes,
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(methods),
        )


def score_tables(methods: pl.DataFrame) -> Iterator[Table]:
    """A table for every task and group: speed-ups to all targets, what they cost, and what clients got of it."""
    several = methods["group"].n_unique() > 1
    for (task, group), mine in methods.group_by(["task", "group"], maintain_order=True):
        whole, shares = full_target(mine), sorted(mine["target_share"].unique().to_list(), reverse=True)
        title = (
            f"{task}{f', {group}' if several else ''}: target {whole['target'][0]:.3f}, {whole['budget_s'][0]:,.0f} s"
        )
        header = ("Method", *(f"Speed-up to {share:.0%}" for share in shares), "Reached", "Final accuracy", *EXTRAS)
        rows = [
            (
                row["method"], *(_ratio_text(mine, row["method"], share) for share in shares),
                f"{row['reached']}/{row['seeds']}", figure_text(accuracy_of(row), 3), *_extras(row),
            )
            for row in whole.iter_rows(named=True)
        ]  # fmt: skip
        yield Table(title, header, rows, SCORES_NOTE)


EXTRAS = ("Device hours", "Sample passes", "Sent up", "Client median", "Worst decile", "Jain")


def _ratio_text(methods: pl.DataFrame, method: str, share: float) -> str:
    """FedBalancer-A and -S are picked for the whole target, and have no other."""
    found = methods.filter((pl.col("method") == method) & (pl.col("target_share") == share)).to_dicts()
    if not found:
        return "–"
    return figure_text(speedup_of(found[0]), 2) if found[0]["reached"] else "never"


def _extras(row: Row) -> tuple[str, ...]:
    """What it cost until the target (at least that, if not all seeds came there), and how clients fare at the end."""
    more = "" if row["reached"] == row["seeds"] else "≥ "
    costs = [
        "–" if row["device_s"] is None else f"{more}{row['device_s'] / 3600:.1f}",
        "–" if row["sample_passes"] is None else f"{more}{row['sample_passes']:,.0f}",
        "–" if row["up_bytes"] is None else more + size_text(row["up_bytes"]),
    ]
    return (*costs, *(accuracy_text(row[name]) for name in ("client_median", "client_worst_decile", "client_jain")))


def headlines(methods: pl.DataFrame, group: Group) -> list[str]:
    """The last method of a group beside its reference, task by task."""
    last = group.methods[-1]
    said = []
    for row in (
        full_target(methods).filter((pl.col("group") == group.name) & (pl.col("method") == last)).iter_rows(named=True)
    ):
        ours = speedup_of(row)
        fast = f"{figure_text(ours, 2)} times as fast as the reference" if ours.mean else "never reached the target"
        fast += f" ({resolved_words(ours)})" if ours.mean else ""
        said.append(f"{row['task']}: {last} {fast}, accuracy {figure_text(accuracy_of(row), 3)}")
    return said


def joined(points: Sequence[str]) -> str:
    """Points as one sentence.

    >>> joined(["har: faster", "femnist: slower"]), joined([])
    ('har: faster; femnist: slower.', 'Nothing is scored yet.')
    """
    return "; ".join(points) + "." if points else "Nothing is scored yet."


def resolved_words(ours: Ours) -> str:
    """What the interval of a speed-up says about 1.

    >>> resolved_words(Ours(1.5, 1.2, 1.9)), resolved_words(Ours(1.5, 0.9, 2.5)), resolved_words(Ours(0.4, None, 0.6))
    ('resolved: faster', 'not resolved by the seeds', 'resolved: slower')
    """
    if ours.low is not None and ours.low > 1:
        return "resolved: faster"
    return "resolved: slower" if ours.high is not None and ours.high < 1 else "not resolved by the seeds"


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
