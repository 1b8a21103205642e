"""What a client sends is a claim. The rules for what to believe, in one place for the simulator and for Flower."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import (
    ClientReport,
    FailedClient,
    Order,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    Weights,
    batches_per_epoch,
)
from fedbalancer.server.suspensions import INVALID, Suspensions

_log = logging.getLogger("fedbalancer")

BIGGEST_CHANGE = 1e6
"""Of one parameter in one round; more is a number that is finite only by accident."""
BIGGEST_LOSS = 1e7
"""Of a sample, noise included: sums over clients and their squares must stay finite, too."""
SLACK_COUNT = 1000.0
"""By how much noise of an unknown size may carry a count beyond the samples that there are."""
DEVIATIONS = 10.0
"""How many standard deviations of its noise a statistic may be off."""
MOST_GROWTH, SMALL_GROWTH = 2.0, 100
"""By which factor, or by how many samples, a client's data may grow from one report to the next; the larger counts."""
MOST_WEIGHT = 5.0
"""Times the median weight of a round that one client may have, where clients are not the simulator's own."""
ROUNDING = 1e-6
LOST_ROUNDS = 3
"""So many rounds in a row in which nobody sends finite numbers are a training that has diverged, not liars."""
NOT_FINITE = "an update with a value that is not a finite number"
_IS_NOT_FINITE = re.compile(rf"{NOT_FINITE}|.*\b(nan|inf), which must be a finite number")

CohortFaults = Callable[[Sequence[ClientReport]], Mapping[str, str]]
"""What is wrong with reports beside the others of their round, by client."""


def fault(
    report: ClientReport,
    weights: Weights,
    size: int | None = None,
    order: Order | None = None,
    loss_noise: float | None = None,
    slack_s: float = 0.0,
) -> str | None:
    """What is wrong with a report, or None: the field, its value and the rule.

    `size` is how many samples the client had when the server last heard of it, `order` what it was asked, `loss_noise`
    the deviation of the noise that its summary adds to statistics of losses; what is not known is not held against it.
    `slack_s` is by how much its clock may disagree with the server's.
    """
    if size is not None and report.size is not None:
        if problem := size_fault(report.size, size):
            return problem
        size = report.size
    found = _update_fault(report, weights) or _summary_fault(report, size, DEVIATIONS * (loss_noise or 0.0))
    if found is None and order is not None:
        found = _epochs_fault(report, order) or _latency_fault(report, order, slack_s)
        if found is None and loss_noise is not None and size is not None and not report.summary.read_by_server:
            found = _consistency_fault(report.summary, size, order.loss_threshold, DEVIATIONS * loss_noise)
    return found


def size_fault(now: int, before: int) -> str | None:
    """What is wrong with a client's new number of samples, or None."""
    most = int(max(MOST_GROWTH * before, before + SMALL_GROWTH))
    return None if 1 <= now <= most else f"size {now}, which must be from 1 to {most}: it was {before} before"


def drop_invalid_reports(
    result: RoundResult, state: ServerState, setup: Setup, cohort_faults: CohortFaults | None = None
) -> RoundResult:
    """The result without reports that cannot be true: each is named in the log, and its client is missing as invalid.
    `cohort_faults` looks at what is left: the rule of a robust method, which compares clients with each other."""
    asked = {*result.plan.cohort, *(report.client for report in result.reports if report.staleness)}
    reports: dict[str, ClientReport] = {}
    problems: dict[str, str] = {}
    for report in result.reports:
        if report.client in reports or report.client in problems or report.client not in asked:
            _log.warning("round %d: a report of client %r that was not asked for", state.round + 1, report.client)
        elif problem := None if result.validated else _problem(report, state, setup, result.plan.order):
            problems[report.client] = problem
        else:
            reports[report.client] = report
    if cohort_faults is not None and reports:
        found = cohort_faults(tuple(reports.values()))
        problems |= {client: found[client] for client in reports if client in found}
        reports = {client: report for client, report in reports.items() if client not in found}
    rejected = {missing.client: missing.problem for missing in result.missing if missing.why == INVALID}
    _check_diverged(rejected | problems, reports, state)
    if problems or len(reports) != len(result.reports):
        result = _without(result, reports, problems)
    return result if setup.most_weight is None else _capped(result, setup.most_weight)


def heaviest(weights: Sequence[float], most: float) -> float:
    """The largest weight that counts: `most` times the median, the lower one of two."""
    return most * sorted(weights)[(len(weights) - 1) // 2] if weights else math.inf


def _capped(result: RoundResult, most: float) -> RoundResult:
    """The result in which no report has more than `most` times the median weight."""
    limit = heaviest([report.weight for report in result.reports], most)
    if all(report.weight <= limit for report in result.reports):
        return result
    for report in result.reports:
        if report.weight > limit:
            text = "round %d: the report of client %r has weight %g instead of %g: %g times the median of the round"
            _log.info(text, result.plan.order.round, report.client, limit, report.weight, most)
    return replace(
        result, reports=tuple(replace(report, weight=min(report.weight, limit)) for report in result.reports)
    )


def _problem(report: ClientReport, state: ServerState, setup: Setup, order: Order) -> str | None:
    size = int(state.ledger.size[state.ledger.position[report.client]])
    known = None if report.staleness else order  # a late report answers an order of an earlier round
    return fault(report, state.weights, size, known, setup.loss_noise)


def _check_diverged(problems: Mapping[str, str], reports: Mapping[str, ClientReport], state: ServerState) -> None:
    """Stop if nobody has sent finite numbers for `LOST_ROUNDS` rounds. `problems` includes what an engine rejected."""
    suspensions: Suspensions = state.suspensions or Suspensions()
    hopeless = not reports and all(map(_IS_NOT_FINITE.fullmatch, problems.values()))
    if problems and hopeless and suspensions.fruitless_rounds + 1 >= LOST_ROUNDS:
        client, problem = next(iter(problems.items()))
        raise TrainingDiverged(f"client {client!r} in round {state.round + 1} sent {problem}, and so did all others")


def _without(result: RoundResult, reports: Mapping[str, ClientReport], problems: Mapping[str, str]) -> RoundResult:
    """The result with these reports only, and those with a problem missing."""
    for client, problem in problems.items():
        _log.warning("round %d: the report of client %r is left out: %s", result.plan.order.round, client, problem)
    dropped = [
        FailedClient(report.client, INVALID, report.timings, problem=problems[report.client])
        for report in result.reports
        if report.client in problems
    ]
    once = {missing.client: missing for missing in dropped}.values()
    missing = tuple(sorted((*result.missing, *once), key=lambda each: each.client))
    return replace(result, reports=tuple(reports.values()), missing=missing)


def _update_fault(report: ClientReport, weights: Weights) -> str | None:
    update = report.update
    if update.shape != weights.shape:
        return f"an update of shape {update.shape} for weights of shape {weights.shape}"
    if update.dtype.kind != "f":
        return f"an update of {update.dtype}, which must be of floats"
    low, high = (float(update.min()), float(update.max())) if update.size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        return NOT_FINITE
    if max(-low, high) > BIGGEST_CHANGE:
        return f"a change of {max(-low, high):g} in one parameter, where {BIGGEST_CHANGE:g} is the most"
    if not (math.isfinite(report.weight) and report.weight > 0):
        return f"weight {report.weight}, which must be a finite number over 0"
    return None


def _summary_fault(report: ClientReport, size: int | None, slack: float) -> str | None:
    summary = report.summary
    for name in (*_STATISTICS, "batch_s"):
        if not math.isfinite(getattr(summary, name)):
            return f"{name} {getattr(summary, name)}, which must be a finite number"
    if summary.batch_s < 0:
        return f"batch_s {summary.batch_s:g}, which must not be negative"
    if size is None:
        return None
    told = {"weight": report.weight, "trained": summary.trained}
    most: dict[str, float] = {"weight": size, "trained": size}
    if not summary.read_by_server:  # what it read from noise is no claim of the client's
        told |= {name: getattr(summary, name) for name in _STATISTICS}
        most |= {
            "loss_low": BIGGEST_LOSS, "loss_high": BIGGEST_LOSS, "loss_sum": BIGGEST_LOSS * size, "loss_count": size,
            "over_count": 2 * size + max(SLACK_COUNT, slack), "over_sumsq": BIGGEST_LOSS**2 * size,
        }  # fmt: skip
    for name, bound in most.items():
        if abs(told[name]) > bound:
            return f"{name} {told[name]:g}, which is at most {bound:g} with {size} samples"
    return None


def _epochs_fault(report: ClientReport, order: Order) -> str | None:
    if 0 < report.epochs <= order.epochs:  # which NaN is not
        return None
    return f"epochs {report.epochs:g}, which must be over 0 and at most the {order.epochs} ordered"


def _latency_fault(report: ClientReport, order: Order, slack_s: float) -> str | None:
    """The batches cannot have taken longer than the server saw the client take for everything."""
    took_s, told_s = report.timings.total_s, report.summary.batch_s
    if took_s <= 0 or not math.isfinite(took_s):  # nobody measured
        return None
    per_epoch = batches_per_epoch(report.summary.trained, order.batch_size, order.epoch_batches)
    batches = 1.0 if report.summary.withholds_counts else max(report.epochs * per_epoch, 1.0)
    most_s = (took_s + slack_s) / batches
    if told_s > most_s * (1 + ROUNDING):
        return f"batch_s {told_s:g}, which is at most {most_s:g}: {batches:g} batches, {took_s:g} s in all"
    return None


def _consistency_fault(summary: Summary, size: int, threshold: float, slack: float) -> str | None:
    """Statistics of one list of losses hang together: each may be off by `slack`, and all by rounding."""
    low, count = summary.loss_low, summary.loss_count
    if low > summary.loss_high + 2 * slack + ROUNDING * abs(low):
        return f"loss_low {low:g}, which is at most loss_high {summary.loss_high:g}"
    least = count * low - slack * (1 + count)
    if summary.loss_sum < least - ROUNDING * (1 + abs(least)):
        return f"loss_sum {summary.loss_sum:g}, which is at least {least:g}: {count:g} losses from {low:g} on"
    if summary.over_count > size * (1 + ROUNDING) + slack:
        return f"over_count {summary.over_count:g}, which is at most {size} samples"
    least = (summary.over_count - slack) * max(threshold, 0.0) ** 2 - slack
    if summary.over_sumsq < least - ROUNDING * (1 + abs(least)):
        return f"over_sumsq {summary.over_sumsq:g}, which is at least {least:g}: all are over the threshold"
    return None


_STATISTICS = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq")
