"""FedBalancer-A and -S: the settings of the grid with the best final accuracy, and with the best speed-up.

The paper picks them on the seed that they are then scored on. Of 36 noisy values the best is too good: so beside them
stand the same rows with settings that were picked on the other seeds only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from fedbalancer.paper.grid import BASE, grid_methods
from fedbalancer.paper.measured import estimate_columns
from fedbalancer.paper.printed import GRID, TABLE2
from fedbalancer.reporting.ratio import Arrival, Estimate, paired_ratio

CROSS = " (cross-validated)"
ROWS = {"fedbalancer-A": ("accuracy", "speed"), "fedbalancer-S": ("speed", "accuracy")}
"""By what each row is picked: first, and among equals. A run that never came to the target has no speed."""
BEST_ROWS = tuple(name + kind for name in ROWS for kind in ("", CROSS))
MEANS = ("sample_passes", "device_s", "up_bytes", "client_median", "client_worst_decile", "client_jain")
CHOSEN = dict.fromkeys(("task", "row", "seed", "settings", "paper"), pl.String)


def best_rows(scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows, over seeds as in the table of methods, and which settings were picked for which seed. Both are empty
    where only the recommended settings were run."""
    grid = scores.filter(pl.col("method").is_in(list(grid_methods())) & (pl.col("target_share") == 1.0)).with_columns(
        speed=pl.when("censored").then(0.0).otherwise("ratio")
    )
    if grid["method"].n_unique() < 2:
        return pl.DataFrame(schema={"task": pl.String}), pl.DataFrame(schema=CHOSEN)
    rows, chosen = [], []
    for name, order in ROWS.items():
        for kind, picked in (("", _on_own(grid, order)), (CROSS, _on_others(grid, order))):
            if picked:
                rows.append(_row(name + kind, picked))
                chosen += [_choice(name, kind, row) for row in picked]
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(chosen, schema=CHOSEN)


def _on_own(grid: pl.DataFrame, order: tuple[str, str]) -> list[dict[str, Any]]:
    """The best row of every seed."""
    best = grid.sort([*order, "method"], descending=[True, True, False]).group_by("seed", maintain_order=True).first()
    return best.sort("seed").to_dicts()


def _on_others(grid: pl.DataFrame, order: tuple[str, str]) -> list[dict[str, Any]]:
    """For every seed the row of the settings that are best on the mean of the others."""
    picked = []
    seeds = sorted(grid["seed"].unique().to_list())
    for seed in seeds if len(seeds) > 1 else []:
        others = grid.filter(pl.col("seed") != seed).group_by("method").agg(pl.col(column).mean() for column in order)
        method = others.sort([*order, "method"], descending=[True, True, False])["method"][0]
        picked += grid.filter((pl.col("seed") == seed) & (pl.col("method") == method)).to_dicts()
    return picked


def _row(name: str, picked: list[dict[str, Any]]) -> dict[str, Any]:
    reached = sum(not row["censored"] for row in picked)
    common = ("task", "variant", "scale", "clients", "group", "rule", "target_share")
    return {
        **{column: picked[0][column] for column in common}, "method": name, "seeds": len(picked), "reached": reached,
        "budget_s": Estimate.of([row["budget_s"] for row in picked]).mean,
        "target": Estimate.of([row["target"] for row in picked]).mean,
        **estimate_columns("ratio", _ratio(picked)),
        **estimate_columns("accuracy", Estimate.of([row["accuracy"] for row in picked])),
        **{part: Estimate.of([row[part] for row in picked if row[part] is not None]).mean for part in MEANS},
    }  # fmt: skip


def _ratio(picked: list[dict[str, Any]]) -> Estimate:
    """Over seeds by the rule of the scores, as a method's own speed-up is."""
    if picked[0]["rule"] == "paper":
        found = Estimate.of([0.0 if row["censored"] else row["ratio"] for row in picked])
        return found if not any(row["censored"] for row in picked) else replace(found, low=None, high=None)
    return paired_ratio([
        (Arrival(row["reference_s"], row["reference_reached"]), Arrival(row["censored_s"], not row["censored"]))
        for row in picked
    ])  # fmt: skip


def _choice(name: str, kind: str, row: dict[str, Any]) -> dict[str, str]:
    settings = grid_methods()[row["method"]]
    printed = TABLE2.get((row["task"], name.removeprefix(f"{BASE}-")), {})
    paper = ", ".join(f"{key} {printed[key]}" for key in GRID if key in printed) if not kind else ""
    words = ", ".join(f"{key} {value:g}" for key, value in settings.items())
    return {"task": row["task"], "row": name + kind, "seed": str(row["seed"]), "settings": words, "paper": paper or "–"}
