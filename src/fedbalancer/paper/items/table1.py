"""Table 1: all methods on all tasks, with FedBalancer-A and -S over the settings of Table 2."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fedbalancer.paper.best import BEST_ROWS, CROSS, best_rows
from fedbalancer.paper.charts import compared_charts
from fedbalancer.paper.grid import grid_methods
from fedbalancer.paper.item import Finding, Frames, Presentation, Table, Work, figure_text
from fedbalancer.paper.items.compared import headlines, joined, result_json, score_tables
from fedbalancer.paper.measured import Group, measured
from fedbalancer.paper.over import findings_over, speedups_over
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import DISAGREE, TABLE1, TASKS
from fedbalancer.paper.request import Request
from fedbalancer.paper.rows import accuracy_of, rows_of, speedup_of
from fedbalancer.reporting import Comparison
from fedbalancer.reporting.plotting import accuracy_panels
from fedbalancer.reporting.rule import Rule
from fedbalancer.runs.simulation import resolve_spec
from fedbalancer.spelling import one_name

METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", "fedbalancer",
)  # fmt: skip
NAME = "all"


def methods(request: Request) -> tuple[str, ...]:
    """The rows of the table, and the runs over Table 2's settings where they are wanted."""
    grid = [name for name in grid_methods() if name not in METHODS] if request.grid else []
    return (*METHODS, *grid)


def other_sample_selection(work: Work, comparison: Comparison) -> str | None:
    """SampleSelection with the deadline of the Prox variant that is faster here, if that is not the task's own choice:
    the paper takes the better Prox's (2T on Reddit, 1T elsewhere)."""
    ratio = comparison.ratio("prox+2t", "prox+1t").mean
    if ratio is None:
        return None
    multiple = 2 if ratio > 1 else 1
    spec = work.request.spec(work.task)
    settings, _ = resolve_spec(spec, spec.load_task())
    own = settings.sample_selection_deadline == multiple
    return None if own else one_name(f"sampleselection[sample_selection_deadline={multiple}]")


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
        names = methods(work.request)
        scored = measured(work, [Group(NAME, names)])
        other = other_sample_selection(work, scored.by_group[NAME])
        if other is not None:
            work.notes.clear()  # all is said again
            scored = measured(work, [Group(NAME, (*names, other))])
        frames = scored.frames
        chosen, settings = best_rows(frames["scores"])
        drawn = frames["curves"].filter(pl.col("method").is_in(METHODS))
        over = speedups_over(scored.by_group[NAME], other)
        return {**frames, "curves": drawn, "best": chosen, "chosen": settings, "over": over}

    def present(self, frames: Frames) -> Presentation:
        own = pl.col("method").is_in(METHODS) | pl.col("method").str.starts_with("sampleselection[")
        rows = frames["methods"].filter(own)
        if frames["best"].height:
            rows = pl.concat([rows, frames["best"]], how="diagonal_relaxed")
        without = [t for t in rows["task"].unique(maintain_order=True) if t not in frames["best"]["task"].to_list()]
        points, findings = headlines(rows, Group(NAME, ("fedbalancer",))), _findings(rows)
        return Presentation(
            headline=joined(points),
            points=points,
            charts=compared_charts(rows, frames["scores"], frames["curves"], findings),
            tables=[_joint(rows), *_chosen(frames["chosen"]), *score_tables(rows)],
            findings=[*findings_over(frames["over"]), *findings],
            notes=[
                *NOTES,
                *([f"Left out: FedBalancer-A and -S on {', '.join(without)} (--no-grid)."] if without else []),
                *DISAGREE,
            ],
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(rows),
        )


NOTES = (
    "FedBalancer-A and -S are the settings of Table 2's grid with the best final accuracy and the best speed-up on "
    "each seed, as in the paper: picked on the same seed that they are scored on, which flatters. The rows marked "
    "(cross-validated) pick the settings for a seed on the other seeds.",
    "SampleSelection has the deadline that the task was published with (2T on Reddit, 1T elsewhere). Where the other "
    "Prox variant is the faster one here, a second row has that one's deadline, and section 4.2's speed-up is over it.",
)


def _joint(rows: pl.DataFrame) -> Table:
    """Speed-up and accuracy of every method, two columns for each task."""
    tasks = rows["task"].unique(maintain_order=True).to_list()
    cells = {(row["task"], row["method"]): row for row in rows_of(rows)}
    others = [name for _, name in cells if name.startswith("sampleselection[")]
    order = dict.fromkeys([*METHODS[:-1], *others, *METHODS[-1:], *BEST_ROWS])
    names = [name for name in order if any((task, name) in cells for task in tasks)]
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
