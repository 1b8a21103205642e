"""Table 1: all methods on all tasks, with FedBalancer-A and -S over the settings of Table 2."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fedbalancer.paper.best import BEST_ROWS, CROSS, best_rows
from fedbalancer.paper.grid import grid_methods
from fedbalancer.paper.item import Finding, Frames, Presentation, Table, Work, figure_text
from fedbalancer.paper.items.compared import (
    accuracy_of,
    headline,
    result_json,
    rows_of,
    score_tables,
    speedup_of,
)
from fedbalancer.paper.measured import Group, measured
from fedbalancer.paper.over import findings_over, speedups_over
from fedbalancer.paper.picture import accuracy_figure
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import DISAGREE, TABLE1, TASKS
from fedbalancer.paper.request import Request
from fedbalancer.report.rule import Rule

METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", "fedbalancer",
)  # fmt: skip
NAME = "all"


def methods(request: Request) -> tuple[str, ...]:
    """The rows of the table, and the runs over Table 2's settings where they are wanted."""
    grid = [name for name in grid_methods() if name not in METHODS] if request.grid else []
    return (*METHODS, *grid)


@dataclass(frozen=True)
class Table1:
    """All methods on all tasks."""

    name: str = "table1"
    title: str = "speed-up and accuracy of all methods"
    place: str = "Table 1"
    tasks: tuple[str, ...] = TASKS
    scale: str = "small"
    rule: Rule = "fair"

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(methods(request)) * request.seeds

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, methods(request))

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        scored = measured(work, [Group(NAME, methods(work.request))])
        frames = scored.frames
        chosen, settings = best_rows(frames["scores"])
        drawn = frames["curves"].filter(pl.col("method").is_in(METHODS))
        over = speedups_over(scored.by_group[NAME])
        return {**frames, "curves": drawn, "best": chosen, "chosen": settings, "over": over}

    def present(self, frames: Frames) -> Presentation:
        whole = pl.col("target_share").is_not_null() & pl.col("method").is_in(METHODS)
        rows = frames["methods"].filter(whole)
        if frames["best"].height:
            rows = pl.concat([rows, frames["best"]], how="diagonal_relaxed")
        without = [t for t in rows["task"].unique(maintain_order=True) if t not in frames["best"]["task"].to_list()]
        return Presentation(
            headline=headline(rows, Group(NAME, ("fedbalancer",))),
            tables=[_joint(rows), *_chosen(frames["chosen"]), *score_tables(rows)],
            findings=[*findings_over(frames["over"]), *_findings(rows)],
            notes=[
                *NOTES,
                *([f"Left out: FedBalancer-A and -S on {', '.join(without)} (--no-grid)."] if without else []),
                *DISAGREE,
            ],
            figures={self.name: accuracy_figure(frames["curves"])},
            json=result_json(rows),
        )


NOTES = (
    "FedBalancer-A and -S are the settings of Table 2's grid with the best final accuracy and the best speed-up on "
    "each seed, as in the paper: picked on the same seed that they are scored on, which flatters. The rows marked "
    "(cross-validated) pick the settings for a seed on the other seeds.",
)


def _joint(rows: pl.DataFrame) -> Table:
    """Speed-up and accuracy of every method, two columns for each task."""
    tasks = rows["task"].unique(maintain_order=True).to_list()
    cells = {(row["task"], row["method"]): row for row in rows_of(rows)}
    names = [name for name in (*METHODS, *BEST_ROWS) if any((task, name) in cells for task in tasks)]
    header = ["Method", *(f"{task}: {what}" for task in tasks for what in ("speed-up", "accuracy"))]
    lines = []
    for name in names:
        line = [name]
        for task in tasks:
            row = cells.get((task, name))
            line += ["–", "–"] if row is None else [
                figure_text(speedup_of(row), 2) if row["reached"] else "never", figure_text(accuracy_of(row), 3),
            ]  # fmt: skip
        lines.append(line)
    return Table("Speed-up over the best FedAvg and final accuracy", header, lines)


def _chosen(chosen: pl.DataFrame) -> list[Table]:
    if not chosen.height:
        return []
    lines = [tuple(map(str, row)) for row in chosen.select("task", "row", "seed", "settings", "paper").iter_rows()]
    return [Table("Settings that were chosen (Table 2)", ("Task", "Row", "Seed", "Settings", "The paper's"), lines)]


def _findings(rows: pl.DataFrame) -> list[Finding]:
    findings = []
    for row in rows_of(rows):
        if row["method"] in METHODS or row["method"] in BEST_ROWS:
            speedup, accuracy = TABLE1.get((row["task"], row["method"].removesuffix(CROSS)), (None, None))
            findings.append(Finding.of(row["task"], f"{row['method']}: speed-up", speedup_of(row), speedup))
            findings.append(
                Finding.of(row["task"], f"{row['method']}: accuracy", accuracy_of(row), accuracy, ratio=False, digits=3)
            )
    return findings


ITEM = Table1()
