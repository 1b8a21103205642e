"""FedBalancer-A and -S: the settings of the grid with the best final accuracy, and with the best speed-up.

The paper picks them on the seed that they are then scored on. Of 36 noisy values the best is too good: so beside them
stand the same rows with settings that were picked on the other seeds only.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from fedbalancer.paper.grid import BASE, grid_methods
from fedbalancer.paper.printed import GRID, TABLE2
from fedbalancer.report.estimate import Estimate

CROSS = " (cross-validated)"
ROWS = {"fedbalancer-A": ("accuracy", "ratio"), "fedbalancer-S": ("ratio", "accuracy")}
"""By what each row is picked: first, and among equals."""
BEST_ROWS = tuple(name + kind for name in ROWS for kind in ("", CROSS))
CHOSEN = dict.fromkeys(("task", "row", "seed", "settings", "paper"), pl.String)


def best_rows(scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows, over seeds as in the table of methods, and which settings were picked for which seed. Both are empty
    where only the recommended settings were run."""
    grid = scores.filter(pl.col("method").is_in(list(grid_methods())) & (pl.col("target_share") == 1.0))
    if grid["method"].n_unique() < 2:
        return pl.DataFrame(schema={"task": pl.String}), pl.DataFrame(schema=CHOSEN)
    rows, chosen = [], []
    for name, order in ROWS.items():
        for kind, picked in (("", _on_own(grid, order)), (CROSS, _on_others(grid, order))):
            if picked:
                rows.append(_row(name + kind, pl.DataFrame(picked), scores))
                chosen += [_choice(name, kind, row) for row in picked]
    return pl.DataFrame(rows), pl.DataFrame(chosen, schema=CHOSEN)


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


def _row(name: str, picked: pl.DataFrame, scores: pl.DataFrame) -> dict[str, Any]:
    reached = int((~picked["censored"]).sum())
    ratio, accuracy = Estimate.of(picked["ratio"].to_list()), Estimate.of(picked["accuracy"].to_list())
    whole = reached == picked.height
    common = ("task", "scale", "variant", "clients", "group", "rule", "target_share")
    return {
        **{column: scores[column][0] for column in common}, "method": name, "seeds": picked.height, "reached": reached,
        "budget_s": picked["budget_s"].mean(), "target": picked["target"].mean(), "ratio": ratio.mean,
        "ratio_std": ratio.std, "ratio_low": ratio.low if whole else None, "ratio_high": ratio.high if whole else None,
        "accuracy": accuracy.mean, "accuracy_std": accuracy.std, "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
    }  # fmt: skip


def _choice(name: str, kind: str, row: dict[str, Any]) -> dict[str, str]:
    settings = grid_methods()[row["method"]]
    printed = TABLE2.get((row["task"], name.removeprefix(f"{BASE}-")), {})
    paper = ", ".join(f"{key} {printed[key]}" for key in GRID if key in printed) if not kind else ""
    words = ", ".join(f"{key} {value:g}" for key, value in settings.items())
    return {"task": row["task"], "row": name + kind, "seed": str(row["seed"]), "settings": words, "paper": paper or "–"}
