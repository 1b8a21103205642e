"""Flower's `Result`: what is in it of every round, and how it outlives a crash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedbalancer.flower.compat import MetricRecord, Result
from fedbalancer.types import RoundResult

RESULTS, METRICS_OF_ROUNDS = "results", (
    "train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp",
)  # fmt: skip
"""Where the checkpoint has the metrics of earlier rounds, and what Flower's `Result` calls them."""


def figures_of(result: RoundResult) -> dict[str, Any]:
    """What a round was like."""
    order, reports = result.plan.order, result.reports
    counts = sum(report.summary.loss_count for report in reports)
    loss = sum(report.summary.loss_sum for report in reports) / counts if counts else math.nan
    joined = sum(report.staleness > 0 for report in reports)
    late = {} if result.plan.late == "lost" else {"joined": joined, "under_way": len(result.under_way)}
    return late | {
        "deadline_s": float(order.deadline_s), "seconds": result.seconds, "selected": len(result.plan.cohort),
        "completed": len(reports), "loss_threshold": order.loss_threshold, "train_loss": loss,
        "num-examples": int(sum(report.summary.trained for report in reports)),
    }  # fmt: skip


def told(result: Result) -> dict[str, dict[str, Any]]:
    """The metrics of all rounds so far, for the checkpoint."""
    return {kind: {str(n): dict(found) for n, found in getattr(result, kind).items()} for kind in METRICS_OF_ROUNDS}


def retell(result: Result, saved: Mapping[str, Any]) -> None:
    """The metrics of the rounds before a resume."""
    for kind in METRICS_OF_ROUNDS:
        rounds = saved.get(kind, {})
        getattr(result, kind).update({int(n): MetricRecord(dict(found)) for n, found in rounds.items()})
