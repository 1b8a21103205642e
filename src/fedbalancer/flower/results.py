"""Flower's `Result`: what it holds of every round, and how it survives a crash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedbalancer.core.types import RoundResult
from fedbalancer.flower.compat import MetricRecord, Result

METRICS_OF_ROUNDS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""What Flower's `Result` calls the metrics of the rounds."""


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


def metrics_of_round(result: Result, number: int) -> dict[str, Any]:
    """The metrics of one round, for the journal."""
    found = {kind: getattr(result, kind).get(number) for kind in METRICS_OF_ROUNDS}
    return {"round": number, **{kind: dict(metrics) for kind, metrics in found.items() if metrics is not None}}


def restore_metrics(result: Result, saved: Iterable[Mapping[str, Any]]) -> None:
    """Put the metrics of earlier rounds, as `metrics_of_round` gave them, into a result."""
    for notes in saved:
        for kind in METRICS_OF_ROUNDS:
            if kind in notes:
                getattr(result, kind)[int(notes["round"])] = MetricRecord(dict(notes[kind]))
