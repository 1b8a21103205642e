"""Section 4.2: FedBalancer's speed-up over the best FedAvg variant, the best Prox variant and SampleSelection.

The best of a kind is the one with the highest mean speed-up. The speed-up over it is paired: on every seed, its seconds
until the target over FedBalancer's.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from fedbalancer.paper.item import Finding
from fedbalancer.paper.printed import SPEEDUPS
from fedbalancer.paper.verdict import Ours
from fedbalancer.report.estimate import Estimate

OURS = "fedbalancer"
KINDS = {
    "fedavg": ("fedavg+1t", "fedavg+2t", "fedavg+spc", "fedavg+wfa"),
    "prox": ("prox+1t", "prox+2t"),
    "sampleselection": ("sampleselection",),
}
COLUMNS = {
    "task": pl.String, "kind": pl.String, "baseline": pl.String, "seeds": pl.Int64, "ratio": pl.Float64,
    "ratio_low": pl.Float64, "ratio_high": pl.Float64, "ratio_text": pl.String, "paper": pl.String,
    "verdict": pl.String,
}  # fmt: skip


def speedups_over(scores: pl.DataFrame) -> pl.DataFrame:
    """A row for each kind of baseline that took part."""
    whole = scores.filter(pl.col("target_share") == 1.0)
    ours = {row["seed"]: row for row in whole.filter(pl.col("method") == OURS).iter_rows(named=True)}
    rows = []
    for kind, names in KINDS.items():
        means = (
            whole.filter(pl.col("method").is_in(names)).group_by("method", maintain_order=True).agg(pl.mean("ratio"))
        )
        if means.height and ours:
            baseline = str(means.sort("ratio", descending=True, maintain_order=True)["method"][0])
            theirs = whole.filter(pl.col("method") == baseline)
            rows.append(_row(kind, baseline, ours, theirs.to_dicts()))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _row(kind: str, baseline: str, ours: dict[int, Any], theirs: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Against FedAvg the reference of each seed counts, which is the best variant there."""
    task = theirs[0]["task"]
    if kind == "fedavg":
        ratios = [row["ratio"] for row in ours.values() if not row["censored"]]
        baseline = "the best of each seed"
    else:
        pairs = [(row, ours[row["seed"]]) for row in theirs if row["seed"] in ours]
        ratios = [row["time_s"] / mine["time_s"] for row, mine in pairs if not (row["censored"] or mine["censored"])]
    found = Estimate.of(ratios)
    paper = SPEEDUPS.get((task, kind))
    finding = Finding.of(task, kind, Ours(found.mean, found.low, found.high), paper)
    figures = (len(ratios), found.mean, found.low, found.high)
    return task, kind, baseline, *figures, finding.ours_text, str(paper or "–"), finding.verdict.words
