"""Section 4.2: FedBalancer's speed-up over the best FedAvg variant, the best Prox variant and SampleSelection.

The best of a kind is, on each seed, the one that ended with the best accuracy. The speed-up over it is paired: on every
seed, its seconds until the target over FedBalancer's.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from fedbalancer.paper.item import Finding
from fedbalancer.paper.measured import estimate_columns
from fedbalancer.paper.printed import SPEEDUPS
from fedbalancer.paper.verdict import Ours
from fedbalancer.reporting import Comparison

OURS = "fedbalancer"
KINDS = {
    "fedavg": ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"),
    "prox": ("prox+1t", "prox+2t"),
    "sampleselection": ("sampleselection",),
}


def speedups_over(comparison: Comparison, sample_selection: str | None = None) -> pl.DataFrame:
    """A row for each kind of baseline; `sample_selection` is the one to compare with, if it is another than usual."""
    rows: list[dict[str, Any]] = []
    kinds = KINDS if sample_selection is None else {**KINDS, "sampleselection": (sample_selection,)}
    for kind, names in kinds.items():
        found = comparison.ratio(OURS, names)
        columns = {"task": comparison.task, "kind": kind, "baselines": ", ".join(names), "seeds": found.seeds}
        rows.append({**columns, **estimate_columns("ratio", found)})
    return pl.DataFrame(rows, infer_schema_length=None)


def findings_over(over: pl.DataFrame) -> list[Finding]:
    """Each beside the paper's."""
    return [
        Finding.of(
            row["task"], f"fedbalancer over the best {row['kind']}",
            Ours(row["ratio"], row["ratio_low"], row["ratio_high"], row["ratio_bound"] or _open(row)),
            SPEEDUPS.get((row["task"], row["kind"])),
        )
        for row in over.iter_rows(named=True)
    ]  # fmt: skip


def _open(row: dict[str, Any]) -> str:
    """The bound of a ratio that was measured and may be anywhere: on some seed neither came to the target."""
    return "?" if row.get("seeds") and row["ratio"] is None else ""
