"""What a client sends is checked before any policy sees it."""

from __future__ import annotations

import math

import numpy as np

from fedbalancer.types import ClientReport, Weights


def fault(report: ClientReport, weights: Weights) -> str | None:
    """What is wrong with a report, or None."""
    if report.update.shape != weights.shape:
        return f"an update of shape {report.update.shape} for weights of shape {weights.shape}"
    if not np.isfinite(report.update).all():
        return "an update with a value that is not a finite number"
    if not (math.isfinite(report.weight) and report.weight > 0):
        return f"weight {report.weight}, which must be a finite number over 0"
    summary = report.summary
    for name in ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s"):
        if not math.isfinite(getattr(summary, name)):
            return f"{name} {getattr(summary, name)}, which must be a finite number"
    return None
