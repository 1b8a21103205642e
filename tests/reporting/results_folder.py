"""A folder of results as `fedbalancer paper` and the benchmark of `canter` leave it, with names that must stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

NASTY = '<img src=x onerror="document.title=1">|**bold**'
Ratio = tuple[float, float | None, float | None]
RATIOS: dict[str, Ratio] = {"fedavg+1t": (1.0, 1.0, 1.0), "prox+1t": (0.8, 0.7, 0.9), "fedbalancer": (1.9, 1.4, 2.5)}
FEDAVG: dict[str, Ratio] = dict.fromkeys(("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"), (0.9, 0.8, 1.1))


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


def ratios(task: str, methods: dict[str, Ratio], **changes: Any) -> list[dict[str, Any]]:
    """The tables of benchmarks/canter.py: each method over FedBalancer, and over the best FedAvg."""
    return [
        {
            "comparison": task, "task": task, "method": method, "target_share": 1.0, "over": over, "ratio": ratio,
            "low": low, "high": high, "bound": "", "p": 0.002, "seeds": 10, "accuracy": 0.9, "worst_decile": 0.8,
            "never_chosen": 0.0, "reached": 10, "sample_passes": 1.0, "device_s": 1.0, "down_bytes": 1.0,
            "up_bytes": 1.0, **changes,
        }
        for method, (mean, low, high) in methods.items()
        for over, ratio in (("fedbalancer", mean / 2), ("best fedavg", mean))
    ]  # fmt: skip


def write_ratios(file: Path, table: list[dict[str, Any]], page: bool = True) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(table, infer_schema_length=None).write_parquet(file)
    if page:
        file.with_suffix(".md").write_text("# a table")
    return file


def write_canter(folder: Path) -> Path:
    """Held-out seeds, the same tasks with peers and fewer seeds, and the other half of the seeds."""
    held_out = {**FEDAVG, "fedbalancer": (1.6, 1.3, 1.9), "canter": (4.2, 3.6, 4.9)}
    peers = {**held_out, "canter": (4.1, 3.3, 5.3), "fedbuff": (1.1, 0.9, 1.4), NASTY: (0.5, 0.4, 0.6)}
    halved = [*ratios("har", held_out), *ratios("reddit", held_out, seeds=5, reached=4)]
    write_ratios(folder / "canter" / "held-out.parquet", halved)
    write_ratios(folder / "canter" / "peers.parquet", ratios("har", peers, seeds=5, reached=5))
    other = {**held_out, "canter": (3.3, 2.6, 4.1)}
    place = folder / "canter" / "seeds-15-to-19" / "held-out.parquet"
    write_ratios(place, ratios("reddit", other, seeds=5, reached=5))
    return folder
