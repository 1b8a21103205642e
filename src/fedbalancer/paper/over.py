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
from fedbalancer.report import Comparison

OURS = "fedbalancer"
KINDS = {
    "fedavg": ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"),
    "prox": ("prox+1t", "prox+2t"),
    "sampleselection": ("sampleselection",),
}


def speedups_over(comparison: Comparison) -> pl.DataFrame:
    """A row for each kind of baseline."""
    rows: list[dict[str, Any]] = []
    for kind, names in KINDS.items():
        found = comparison.ratio(OURS, names)
        columns = {"task": comparison.task, "kind": kind, "baselines": ", ".join(names), "seeds": found.seeds}
        rows.append({**columns, **estimate_columns("ratio", found)})
    return pl.DataFrame(rows, infer_schema_length=None)


def findings_over(over: pl.DataFrame) -> list[Finding]:
    """Each beside the paper's."""
    return [
        Finding.of(
            row["task"], f"fedbalancer over the best {row['kind']}",
            Ours(row["ratio"], row["ratio_low"], row["ratio_high"], row["ratio_bound"]),
            SPEEDUPS.get((row["task"], row["kind"])),
        )
        for row in over.iter_rows(named=True)
    ]  # fmt: skip
