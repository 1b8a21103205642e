"""A folder of results as `fedbalancer paper` leaves it, with names that must stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

NASTY = '<img src=x onerror="document.title=1">|**bold**'
Ratio = tuple[float, float | None, float | None]
RATIOS: dict[str, Ratio] = {"fedavg+1t": (1.0, 1.0, 1.0), "prox+1t": (0.8, 0.7, 0.9), "fedbalancer": (1.9, 1.4, 2.5)}


def rows(task: str, methods: dict[str, Ratio], **changes: Any) -> list[dict[str, Any]]:
    common = {"task": task, "scale": "small", "variant": "stand-in", "clients": 21, "group": "all", "rule": "fair"}
    return [
        {
            **common, "target_share": 1.0, "method": method, "seeds": 5, "reached": 5, "budget_s": 100.0,
            "ratio": ratio, "ratio_low": low, "ratio_high": high, "accuracy": 0.8, "accuracy_low": 0.79,
            "accuracy_high": 0.81, **changes,
        }
        for method, (ratio, low, high) in methods.items()
    ]  # fmt: skip


def write_results(folder: Path) -> Path:
    never = {"ratio": None, "ratio_low": None, "ratio_high": None, "reached": 0}
    table1 = [
        *rows("har", RATIOS), *rows("femnist", {**RATIOS, "fedbalancer": (1.1, 0.9, 1.3)}),
        *rows(NASTY, {NASTY: (1.2, 0.8, 1.9)}), *rows("femnist", {"sampleselection": (0.0, 0.0, 0.0)}, **never),
        *rows("har", RATIOS, target_share=0.9), *rows("har", {"fedbalancer[w=5,p=.75]": (2.2, 1.6, 2.9)}),
        *rows("femnist", {"oort": (0.4, None, 0.6)}, reached=1, ratio_bound="<"),
    ]  # fmt: skip
    write_item(folder / "table1", "table1", table1)
    write_item(folder / "fig2", "fig2", rows("har", {"fedavg[deadline=.5T]": (0.6, 0.5, 0.7)}, group="deadlines"))
    return folder


def write_item(folder: Path, item: str, table: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    pl.DataFrame(table, infer_schema_length=None).write_parquet(folder / "methods.parquet")
    part = {"command": "fedbalancer paper", "measured": "2026-01-02T03:04:05+00:00", "seeds": 5}
    (folder / "item.json").write_text(json.dumps({"item": item, "parts": {"har": part}}))
    (folder / f"{item}.html").write_text("<title>item</title>")
