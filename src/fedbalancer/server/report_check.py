"""What a client sends is a claim. The rules for what to believe, in one place for the simulator and for Flower."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from fedbalancer.errors import TrainingDiverged
from fedbalancer.types import ClientReport, Missing, RoundResult, ServerState, Weights

_log = logging.getLogger("fedbalancer")

BIGGEST_CHANGE = 1e6
"""Of one parameter in one round; more is a number that is finite only by accident."""
BIGGEST_LOSS = 1e7
"""Of a sample, noise included: sums over clients and their squares must stay finite, too."""
SLACK_COUNT = 1000.0
"""By how much noise may carry a count beyond the samples that there are."""
INVALID = "invalid"
"""Why a client is missing whose report was not believed."""


def fault(report: ClientReport, weights: Weights, size: int | None = None) -> str | None:
    """What is wrong with a report, or None. `size` is how many samples the client enrolled with, if that is known."""
    return _update_fault(report, weights) or _summary_fault(report, size)


def believed(result: RoundResult, state: ServerState) -> RoundResult:
    """The result without reports that cannot be true: each is named in the log, and its client is missing as invalid.
    If nobody's can be, it is not the clients who are wrong: then the training has diverged."""
    ledger = state.ledger
    faults = {
        report.client: problem
        for report in result.reports
        if (problem := fault(report, state.weights, int(ledger.size[ledger.position[report.client]])))
    }
    if not faults:
        return result
    if len(faults) == len(result.reports):
        client, problem = next(iter(faults.items()))
        raise TrainingDiverged(f"client {client!r} in round {state.round + 1} sent {problem}")
    for client, problem in faults.items():
        _log.warning("round %d: the report of client %r is left out: %s", state.round + 1, client, problem)
    dropped = [Missing(report.client, INVALID, report.timings) for report in result.reports if report.client in faults]
    return replace(
        result,
        reports=tuple(report for report in result.reports if report.client not in faults),
        missing=tuple(sorted((*result.missing, *dropped), key=lambda each: each.client)),
    )


def _update_fault(report: ClientReport, weights: Weights) -> str | None:
    update = report.update
    if update.shape != weights.shape:
        return f"an update of shape {update.shape} for weights of shape {weights.shape}"
    if update.dtype.kind != "f":
        return f"an update of {update.dtype}, which must be of floats"
    low, high = (float(update.min()), float(update.max())) if update.size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        return "an update with a value that is not a finite number"
    if max(-low, high) > BIGGEST_CHANGE:
        return f"a change of {max(-low, high):g} in one parameter, where {BIGGEST_CHANGE:g} is the most"
    if not (math.isfinite(report.weight) and report.weight > 0):
        return f"weight {report.weight}, which must be a finite number over 0"
    return None


def _summary_fault(report: ClientReport, size: int | None) -> str | None:
    summary = report.summary
    for name in (*_STATISTICS, "batch_s"):
        if not math.isfinite(getattr(summary, name)):
            return f"{name} {getattr(summary, name)}, which must be a finite number"
    if size is None:
        return None
    told = {"weight": report.weight, "trained": summary.trained}
    most: dict[str, float] = {"weight": size, "trained": size}
    if not summary.read_by_server:  # what it read from noise is no claim of the client's
        told |= {name: getattr(summary, name) for name in _STATISTICS}
        most |= {
            "loss_low": BIGGEST_LOSS, "loss_high": BIGGEST_LOSS, "loss_sum": BIGGEST_LOSS * size, "loss_count": size,
            "over_count": 2 * size + SLACK_COUNT, "over_sumsq": BIGGEST_LOSS**2 * size,
        }  # fmt: skip
    for name, bound in most.items():
        if abs(told[name]) > bound:
            return f"{name} {told[name]:g}, which is at most {bound:g} with {size} samples"
    return None


_STATISTICS = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq")
