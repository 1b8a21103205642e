"""Table 1: all methods on all tasks, with FedBalancer-A and -S over the settings of Table 2.

FedBalancer-A and -S have the settings of the grid with the best final accuracy and the best speed-up. The paper selects
them on the seed they are scored on; the best of 36 noisy values is biased upwards. Cross-validated rows therefore show
the same with settings that were selected on the other seeds.

Section 4.2 reports FedBalancer's speed-up over the best FedAvg variant, the best Prox variant and SampleSelection. The
best of a kind is, on each seed, the method with the best final accuracy; the speed-up over it is paired by seed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl

from fedbalancer.experiments.simulation import resolve_spec
from fedbalancer.methods.names import canonical_name
from fedbalancer.paper.charts import comparison_charts
from fedbalancer.paper.item import Finding, Frames, Item, Measured, Presentation, Request, Table, Work, value_text
from fedbalancer.paper.items.comparisons import (
    accuracy_finding,
    join_points,
    result_json,
    score_tables,
    speedup_finding,
    write_points,
)
from fedbalancer.paper.pool import TaskPool
from fedbalancer.paper.printed import DISAGREE, GRID, RECOMMENDED, SPEEDUPS, TABLE2, TASKS
from fedbalancer.paper.printed import TABLE1 as PRINTED
from fedbalancer.paper.scores import Group, estimate_columns, list_rows, read_accuracy, read_speedup, score_groups
from fedbalancer.reporting import Comparison
from fedbalancer.reporting.plotting import accuracy_panels
from fedbalancer.reporting.ratio import Arrival, Estimate, paired_ratio

BASE = "fedbalancer"
METHODS = (
    "fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa", "prox+1t", "prox+2t", "sampleselection", BASE,
)  # fmt: skip
KINDS = {
    "fedavg": ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"),
    "prox": ("prox+1t", "prox+2t"),
    "sampleselection": ("sampleselection",),
}
"""Kinds of baselines of section 4.2."""
NAME = "all"
CROSS = " (cross-validated)"
ROWS = {"fedbalancer-A": ("accuracy", "speed"), "fedbalancer-S": ("speed", "accuracy")}
"""The columns by which each row is selected; the second decides ties. An unreached target has speed 0."""
BEST_ROWS = tuple(name + kind for name in ROWS for kind in ("", CROSS))
MEANS = ("sample_passes", "device_s", "up_bytes", "client_median", "client_worst_decile", "client_jain")
CHOSEN = dict.fromkeys(("task", "row", "seed", "settings", "paper"), pl.String)
NOTES = (
    "FedBalancer-A and -S have the settings of Table 2's grid with the best final accuracy and the best speed-up on "
    "each seed, as in the paper. They are selected on the seed they are scored on, which biases them upwards. For the "
    "rows marked (cross-validated), the settings of a seed are selected on the other seeds.",
    "SampleSelection has the deadline that the task was published with (2T on Reddit, 1T elsewhere). If the other Prox "
    "variant is faster here, a second row has its deadline, and the speed-up of section 4.2 is relative to that row.",
)


class Table1(Item):
    """All methods on all tasks."""

    def runs(self, request: Request) -> int:
        return len(request.tasks) * len(list_methods(request)) * len(request.seeds)

    def check(self, request: Request) -> None:
        for task in request.tasks:
            TaskPool.make(request, task, list_methods(request))

    def measure(self, work: Work) -> dict[str, pl.DataFrame]:
        names = list_methods(work.request)
        scored = score_groups(work, [Group(NAME, names)])
        other = other_sample_selection(work, scored.by_group[NAME])
        if other is not None:
            work.notes.clear()  # scoring again repeats them
            scored = score_groups(work, [Group(NAME, (*names, other))])
        frames = scored.frames
        best, chosen = best_rows(frames["scores"])
        curves = frames["curves"].filter(pl.col("method").is_in(METHODS))
        over = speedups_over(scored.by_group[NAME], other)
        return {**frames, "curves": curves, "best": best, "chosen": chosen, "over": over}

    def present(self, frames: Frames) -> Presentation:
        listed = pl.col("method").is_in(METHODS) | pl.col("method").str.starts_with("sampleselection[")
        rows = frames["methods"].filter(listed)
        if frames["best"].height:
            rows = pl.concat([rows, frames["best"]], how="diagonal_relaxed")
        without = [t for t in rows["task"].unique(maintain_order=True) if t not in frames["best"]["task"].to_list()]
        points, findings = write_points(rows, Group(NAME, (BASE,))), _find_methods(rows)
        return Presentation(
            headline=join_points(points),
            points=points,
            charts=comparison_charts(rows, frames["scores"], frames["curves"], findings),
            tables=[_main_table(rows), *_settings_tables(frames["chosen"]), *score_tables(rows)],
            findings=[*find_over(frames["over"]), *findings],
            notes=[
                *NOTES,
                *([f"FedBalancer-A and -S were not measured on {', '.join(without)} (--no-grid)."] if without else []),
                *DISAGREE,
            ],
            figures={self.name: accuracy_panels(frames["curves"])},
            json=result_json(rows),
        )


def list_methods(request: Request) -> tuple[str, ...]:
    """Return the methods of the table and, if requested, those of Table 2's grid."""
    grid = [name for name in grid_methods() if name not in METHODS] if request.grid else []
    return (*METHODS, *grid)


def grid_methods() -> dict[str, dict[str, float]]:
    """Return the settings of Table 2's grid by method; the recommended settings are plain FedBalancer.

    Methods with the same w are adjacent, because they share their first rounds.

    Example:
        >>> len(grid_methods()), list(grid_methods())[0]
        (36, 'fedbalancer[w=5,lss=.01,dss=.05,p=.75]')
    """
    combinations = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    return {_method_name(settings): settings for settings in combinations}


def _method_name(settings: dict[str, float]) -> str:
    if settings == dict(RECOMMENDED):
        return BASE
    return canonical_name(f"{BASE}[{','.join(f'{key}={value:g}' for key, value in settings.items())}]")


def other_sample_selection(work: Work, comparison: Comparison) -> str | None:
    """Return SampleSelection with the deadline of the faster Prox variant; None if the task has that deadline already.

    The paper uses the deadline of the better Prox variant (2T on Reddit, 1T elsewhere).
    """
    ratio = comparison.ratio("prox+2t", "prox+1t").mean
    if ratio is None:
        return None
    multiple = 2 if ratio > 1 else 1
    spec = work.request.spec(work.task)
    settings, _ = resolve_spec(spec, spec.load_task())
    if settings.sample_selection_deadline == multiple:
        return None
    return canonical_name(f"sampleselection[sample_selection_deadline={multiple}]")


def best_rows(scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Select FedBalancer-A and -S from the grid.

    Args:
        scores: The table `scores` of one task.

    Returns:
        The rows over seeds, as in the table `methods`, and the selected settings by seed. Both are empty if only the
        recommended settings were run.
    """
    grid = scores.filter(pl.col("method").is_in(list(grid_methods())) & (pl.col("target_share") == 1.0)).with_columns(
        speed=pl.when("censored").then(0.0).otherwise("ratio")
    )
    if grid["method"].n_unique() < 2:
        return pl.DataFrame(schema={"task": pl.String}), pl.DataFrame(schema=CHOSEN)
    rows, chosen = [], []
    for name, order in ROWS.items():
        for kind, selected in (("", _select_on_same(grid, order)), (CROSS, _select_on_others(grid, order))):
            if selected:
                rows.append(_best_row(name + kind, selected))
                chosen += [_describe_choice(name, kind, row) for row in selected]
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(chosen, schema=CHOSEN)


def _select_on_same(grid: pl.DataFrame, order: tuple[str, str]) -> list[dict[str, Any]]:
    """Select the best row of every seed."""
    best = grid.sort([*order, "method"], descending=[True, True, False]).group_by("seed", maintain_order=True).first()
    return best.sort("seed").to_dicts()


def _select_on_others(grid: pl.DataFrame, order: tuple[str, str]) -> list[dict[str, Any]]:
    """Select for every seed the row of the settings with the best mean on the other seeds."""
    selected = []
    seeds = sorted(grid["seed"].unique().to_list())
    for seed in seeds if len(seeds) > 1 else []:
        others = grid.filter(pl.col("seed") != seed).group_by("method").agg(pl.col(column).mean() for column in order)
        method = others.sort([*order, "method"], descending=[True, True, False])["method"][0]
        selected += grid.filter((pl.col("seed") == seed) & (pl.col("method") == method)).to_dicts()
    return selected


def _best_row(name: str, selected: list[dict[str, Any]]) -> dict[str, Any]:
    reached = sum(not row["censored"] for row in selected)
    common = ("task", "variant", "scale", "clients", "group", "rule", "target_share")
    return {
        **{column: selected[0][column] for column in common}, "method": name, "seeds": len(selected),
        "reached": reached, "budget_s": Estimate.of([row["budget_s"] for row in selected]).mean,
        "target": Estimate.of([row["target"] for row in selected]).mean,
        **estimate_columns("ratio", _average_ratios(selected)),
        **estimate_columns("accuracy", Estimate.of([row["accuracy"] for row in selected])),
        **{part: Estimate.of([row[part] for row in selected if row[part] is not None]).mean for part in MEANS},
    }  # fmt: skip


def _average_ratios(selected: list[dict[str, Any]]) -> Estimate:
    """Average the speed-ups by the rule of the scores."""
    if selected[0]["rule"] == "paper":
        estimate = Estimate.of([0.0 if row["censored"] else row["ratio"] for row in selected])
        return estimate if not any(row["censored"] for row in selected) else replace(estimate, low=None, high=None)
    return paired_ratio([
        (Arrival(row["reference_s"], row["reference_reached"]), Arrival(row["censored_s"], not row["censored"]))
        for row in selected
    ])  # fmt: skip


def _describe_choice(name: str, kind: str, row: dict[str, Any]) -> dict[str, str]:
    settings = grid_methods()[row["method"]]
    printed = TABLE2.get((row["task"], name.removeprefix(f"{BASE}-")), {})
    paper = ", ".join(f"{key} {printed[key]}" for key in GRID if key in printed) if not kind else ""
    text = ", ".join(f"{key} {value:g}" for key, value in settings.items())
    return {"task": row["task"], "row": name + kind, "seed": str(row["seed"]), "settings": text, "paper": paper or "–"}


def speedups_over(comparison: Comparison, sample_selection: str | None = None) -> pl.DataFrame:
    """Compute FedBalancer's speed-up over each kind of baseline.

    Args:
        comparison: The scores of one task.
        sample_selection: The SampleSelection method to use. Default: `sampleselection`.
    """
    rows: list[dict[str, Any]] = []
    kinds = KINDS if sample_selection is None else {**KINDS, "sampleselection": (sample_selection,)}
    for kind, names in kinds.items():
        ratio = comparison.ratio(BASE, names)
        columns = {"task": comparison.task, "kind": kind, "baselines": ", ".join(names), "seeds": ratio.seeds}
        rows.append({**columns, **estimate_columns("ratio", ratio)})
    return pl.DataFrame(rows, infer_schema_length=None)


def find_over(over: pl.DataFrame) -> list[Finding]:
    """Return the findings of section 4.2."""
    return [
        Finding.of(
            row["task"], f"fedbalancer over the best {row['kind']}",
            Measured(row["ratio"], row["ratio_low"], row["ratio_high"], row["ratio_bound"] or _unknown_bound(row)),
            SPEEDUPS.get((row["task"], row["kind"])),
        )
        for row in over.iter_rows(named=True)
    ]  # fmt: skip


def _unknown_bound(row: dict[str, Any]) -> str:
    """Return "?" for a ratio about which nothing is known, because on some seed neither method reached the target."""
    return "?" if row.get("seeds") and row["ratio"] is None else ""


def _main_table(rows: pl.DataFrame) -> Table:
    """Return the speed-up and accuracy of every method, two columns per task."""
    tasks = rows["task"].unique(maintain_order=True).to_list()
    cells = {(row["task"], row["method"]): row for row in list_rows(rows)}
    others = [name for _, name in cells if name.startswith("sampleselection[")]
    order = dict.fromkeys([*METHODS[:-1], *others, *METHODS[-1:], *BEST_ROWS])
    names = [name for name in order if any((task, name) in cells for task in tasks)]
    header = ["Method", *(f"{task}: {value}" for task in tasks for value in ("speed-up", "accuracy"))]
    lines = []
    for name in names:
        line = [name]
        for task in tasks:
            row = cells.get((task, name))
            line += ["–", "–"] if row is None else [
                value_text(read_speedup(row), 2) if row["reached"] else "never", value_text(read_accuracy(row), 3),
            ]  # fmt: skip
        lines.append(line)
    return Table("Speed-up over the best FedAvg and final accuracy", header, lines)


def _settings_tables(chosen: pl.DataFrame) -> list[Table]:
    if not chosen.height:
        return []
    lines = [tuple(map(str, row)) for row in chosen.select("task", "row", "seed", "settings", "paper").iter_rows()]
    return [Table("Selected settings (Table 2)", ("Task", "Row", "Seed", "Settings", "Paper"), lines)]


def _find_methods(rows: pl.DataFrame) -> list[Finding]:
    findings = []
    for row in list_rows(rows):
        if row["method"] in METHODS or row["method"] in BEST_ROWS:
            speedup, accuracy = PRINTED.get((row["task"], row["method"].removesuffix(CROSS)), (None, None))
            findings += [
                speedup_finding(row, row["method"], speedup),
                accuracy_finding(row, row["method"], accuracy),
            ]
    return findings


TABLE1 = Table1(name="table1", title="speed-up and accuracy of all methods", place="Table 1", tasks=TASKS)
