"""Checks of client reports, for the simulator and for Flower, and suspensions of the senders of invalid ones.

Whatever a client sends is a claim. A client that sends an invalid report or none is suspended for one round, then two,
then four, until it reports.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import (
    FOLDED,
    ClientReport,
    FailedClient,
    IndexArray,
    Ledger,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    Setup,
    Shapes,
    Summary,
    Weights,
)
from fedbalancer.core.types.layout import find_array_fault

MAX_ROUNDS = 64
"""Longest suspension, in rounds."""
INVALID = "invalid"
"""`FailedClient.why` of a client whose report was rejected."""


@dataclass(frozen=True)
class Suspensions:
    """Suspended clients; part of the server's state, so they survive a restart.

    Args:
        offences: Consecutive offences of each client.
        until: Last round of each client's suspension.
        fruitless_rounds: Rounds with invalid reports since the last valid report.
        silent: Clients whose last offence was not to answer.
    """

    offences: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    fruitless_rounds: int = 0
    silent: tuple[str, ...] = ()

    def after(self, result: RoundResult) -> Suspensions:
        """Return the suspensions after a round. A valid report clears a client's offences.

        Args:
            result: The round, with rejected reports as failed clients.
        """
        offenders = [missing.client for missing in result.missing if missing.why == INVALID]
        if not offenders and not self.offences and not self.fruitless_rounds:
            return self
        good = {report.client for report in result.reports}
        suspensions = self._forgive(good)._suspend(offenders, result.plan.order.round)
        silent = tuple(client for client in suspensions.silent if client not in offenders)
        fruitless_rounds = 0 if good else self.fruitless_rounds + (1 if offenders else 0)
        return replace(suspensions, fruitless_rounds=fruitless_rounds, silent=silent)

    def suspend_silent(self, clients: Iterable[str], round_number: int) -> Suspensions:
        """Return the suspensions with these clients added, because they did not answer an order.

        Args:
            clients: Client ids.
            round_number: The current round.
        """
        quiet = list(clients)
        if not quiet:
            return self
        suspensions = self._suspend(quiet, round_number)
        return replace(suspensions, silent=tuple(sorted({*suspensions.silent, *quiet})))

    def clear_silent(self, clients: Iterable[str]) -> Suspensions:
        """Return the suspensions after these clients restarted: their earlier silence no longer counts.

        Args:
            clients: Client ids.
        """
        back = set(clients) & set(self.silent)
        return self._forgive(back) if back else self

    def _suspend(self, clients: Iterable[str], round_number: int) -> Suspensions:
        offences, until = dict(self.offences), dict(self.until)
        for client in clients:
            offences[client] = offences.get(client, 0) + 1
            until[client] = round_number + min(2 ** (offences[client] - 1), MAX_ROUNDS)
        return replace(self, offences=offences, until=until)

    def _forgive(self, clients: Set[str]) -> Suspensions:
        kept = {client: count for client, count in self.offences.items() if client not in clients}
        until = {client: last for client, last in self.until.items() if client not in clients}
        return replace(self, offences=kept, until=until, silent=tuple(c for c in self.silent if c not in clients))

    def eligible(self, clients: Iterable[str], round_number: int) -> list[str]:
        """Return the clients that are not suspended in the round after `round_number`, or all if none is left.

        Args:
            clients: Client ids.
            round_number: The last round.
        """
        everybody = list(clients)
        return [client for client in everybody if self.until.get(client, 0) <= round_number] or everybody

    def eligible_rows(self, ledger: Ledger, rows: IndexArray, round_number: int) -> IndexArray:
        """Return the ledger rows that are not suspended in the round after `round_number`, or all if none is left.

        Args:
            ledger: The server's ledger.
            rows: Row numbers.
            round_number: The last round.
        """
        out = [ledger.position[client] for client, last in self.until.items() if last > round_number]
        if not out:
            return rows
        left = rows[~np.isin(rows, out)]
        return left if len(left) else rows


_log = logging.getLogger("fedbalancer")

MAX_CHANGE = 1e6
"""Largest change of one parameter in one round."""
MAX_LOSS = 1e7
"""Largest loss of a sample, noise included, so that sums over clients and their squares stay finite."""
SLACK_COUNT = 1000.0
"""Largest excess of a count over the number of samples if the size of its noise is unknown."""
DEVIATIONS = 10.0
"""Largest error of a statistic, in standard deviations of its noise."""
MAX_GROWTH, SMALL_GROWTH = 2.0, 100
"""Largest growth of a client's data between two reports, as a factor or in samples; the larger bound counts."""
MOST_WEIGHT = 5.0
"""Largest weight of a client relative to the round's median weight, for real clients."""
ROUNDING = 1e-6
"""Relative tolerance; also for first losses, which are stored in four bytes."""
LOST_ROUNDS = 3
"""Rounds with invalid reports only after which a run ends, if losses or updates are not finite or far too large."""
NOT_FINITE = "an update with a value that is not a finite number"
TRAINING_DIVERGED = "training diverged: "
"""Start of the problem of a client that found a value which is not finite in its own training."""
_TOO_LARGE = r"(a change of|loss_low|loss_high|loss_sum|over_sumsq) .*, which must be at most"
_HAS_DIVERGED = re.compile(
    rf"{NOT_FINITE}|{TRAINING_DIVERGED}|{_TOO_LARGE}|.*\b(nan|inf), which must be a finite number"
)

CohortFaults = Callable[[Sequence[ClientReport]], Mapping[str, str]]
"""Compares the reports of a round with each other. Returns faults by client."""


def find_fault(
    report: ClientReport,
    weights: Weights,
    size: int | None = None,
    order: Order | None = None,
    loss_noise: float | None = None,
    slack_s: float = 0.0,
    arrays: Shapes | None = None,
) -> str | None:
    """Return what is wrong with a report: the field, its value and the rule.

    Args:
        report: The report.
        weights: The current global model.
        size: The client's number of samples when it last reported. None: unknown.
        order: What the server asked for. None: unknown.
        loss_noise: Standard deviation of the noise on loss statistics. None: unknown.
        slack_s: Largest error of the client's clock, in seconds.
        arrays: Names and shapes of the arrays that the report must have. None: unknown.

    Returns:
        The fault, or None. What is unknown is not checked.
    """
    if size is not None and report.size is not None:
        if problem := find_size_fault(report.size, size):
            return problem
        size = report.size
    problem = find_update_fault(report, weights) or _summary_fault(report, size, DEVIATIONS * (loss_noise or 0.0))
    if problem is None and arrays is not None and (arrays or report.arrays):
        problem = find_array_fault(report.arrays, arrays)
    if problem is None and order is not None:
        problem = _epochs_fault(report, order) or _latency_fault(report, order, slack_s)
        if problem is None and loss_noise is not None and size is not None and not report.summary.read_by_server:
            problem = _consistency_fault(report.summary, size, order.loss_threshold, DEVIATIONS * loss_noise)
    return problem


def find_size_fault(now: int, before: int) -> str | None:
    """Return what is wrong with a client's new number of samples, or None.

    Args:
        now: The new number.
        before: The number in its last report.
    """
    most = int(max(MAX_GROWTH * before, before + SMALL_GROWTH))
    return None if 1 <= now <= most else f"size {now}, which must be from 1 to {most}: it was {before} before"


def drop_invalid_reports(
    result: RoundResult, state: ServerState, setup: Setup, cohort_faults: CohortFaults | None = None
) -> RoundResult:
    """Return the result without invalid reports. Each is logged, and its client becomes a failed client.

    Args:
        result: The round as the engine returns it.
        state: The state before the round.
        setup: Constants of the run.
        cohort_faults: Compares the remaining reports with each other, for robust methods.

    Returns:
        The result, with weights limited to `setup.most_weight` times the median.

    Raises:
        TrainingDiverged: Training diverged for all clients in several consecutive rounds (see `rounds_to_lose`).
    """
    requested = {*result.plan.cohort, *(report.client for report in result.reports if report.staleness)}
    reports: dict[str, ClientReport] = {}
    problems: dict[str, str] = {}
    for report in result.reports:
        if report.client in reports or report.client in problems or report.client not in requested:
            _log.warning("round %d: ignored an unrequested report of client %r", state.round + 1, report.client)
        elif problem := None if result.validated else _find_problem(report, state, setup, result.plan.order):
            problems[report.client] = problem
        else:
            reports[report.client] = report
    if cohort_faults is not None and reports:
        faults = cohort_faults(tuple(reports.values()))
        problems |= {client: faults[client] for client in reports if client in faults}
        reports = {client: report for client, report in reports.items() if client not in faults}
    rejected = {missing.client: missing.problem for missing in result.missing if missing.why == INVALID}
    if not reports:
        _check_diverged(rejected | problems, state, rounds_to_lose(result.plan, setup))
    if problems or len(reports) != len(result.reports):
        result = _reject(result, reports, problems)
    return result if setup.most_weight is None else _cap_weights(result, setup.most_weight)


def weight_limit(weights: Sequence[float], most: float) -> float:
    """Return `most` times the median weight (the lower of two), or inf without weights.

    Args:
        weights: Weights of a round's reports.
        most: Multiple of the median.
    """
    return most * sorted(weights)[(len(weights) - 1) // 2] if weights else math.inf


def _cap_weights(result: RoundResult, most: float) -> RoundResult:
    """Limit all weights to `most` times the median."""
    limit = weight_limit([report.weight for report in result.reports], most)
    if all(report.weight <= limit for report in result.reports):
        return result
    for report in result.reports:
        if report.weight > limit:
            text = "round %d: reduced the weight of client %r to %g from %g: %g times the round's median"
            _log.info(text, result.plan.order.round, report.client, limit, report.weight, most)
    return replace(
        result, reports=tuple(replace(report, weight=min(report.weight, limit)) for report in result.reports)
    )


def _find_problem(report: ClientReport, state: ServerState, setup: Setup, order: Order) -> str | None:
    size = int(state.ledger.size[state.ledger.position[report.client]])
    known = None if report.staleness else order  # a late report answers an order of an earlier round
    return find_fault(report, state.weights, size, known, setup.loss_noise, arrays=setup.report_arrays)


def rounds_to_lose(plan: RoundPlan, setup: Setup) -> int:
    """Return how many rounds without a valid report end a run whose training diverges.

    This is `LOST_ROUNDS`. A round of an asynchronous method may have a single report; such a run ends after about as
    many reports as `LOST_ROUNDS` rounds of all clients have.

    Args:
        plan: The last round.
        setup: Constants of the run.
    """
    if plan.late != "counts":
        return LOST_ROUNDS
    return LOST_ROUNDS * max(math.ceil(setup.clients_per_round / max(plan.quorum, 1)), 1)


def _check_diverged(problems: Mapping[str, str], state: ServerState, rounds: int) -> None:
    """Raise if training diverged in a round without a valid report, and the last `rounds` rounds had none either.

    `problems` includes what an engine rejected.
    """
    suspensions: Suspensions = state.suspensions or Suspensions()
    diverged = [client for client, problem in problems.items() if _HAS_DIVERGED.match(problem)]
    count = suspensions.fruitless_rounds + 1
    if diverged and count >= rounds:
        problem = problems[diverged[0]]
        advice = "" if "learning rate" in problem else "; try a smaller learning_rate"
        raise TrainingDiverged(
            f"no client sent a valid report in {count} rounds; round {state.round + 1}, client {diverged[0]!r}: "
            f"{problem}{advice}"
        )


def _reject(result: RoundResult, reports: Mapping[str, ClientReport], problems: Mapping[str, str]) -> RoundResult:
    """Keep these reports only, and add those with a problem to the failed clients."""
    for client, problem in problems.items():
        _log.warning("round %d: rejected the report of client %r: %s", result.plan.order.round, client, problem)
    dropped = [
        FailedClient(report.client, INVALID, report.timings, problem=problems[report.client])
        for report in result.reports
        if report.client in problems
    ]
    once = {missing.client: missing for missing in dropped}.values()
    missing = tuple(sorted((*result.missing, *once), key=lambda each: each.client))
    return replace(result, reports=tuple(reports.values()), missing=missing)


def find_update_fault(report: ClientReport, weights: Weights) -> str | None:
    """Return what is wrong with the update or the weight of a report, or None.

    An update that was added to a sum was checked before. A report of a diverged training names its own problem.

    Args:
        report: The report.
        weights: The current global model.
    """
    if report.problem:
        return report.problem
    if report.update is not FOLDED and (problem := _array_fault(report.update, weights)):
        return problem
    if not (math.isfinite(report.weight) and report.weight > 0):
        return f"weight {report.weight}, which must be a finite number over 0"
    return None


def _array_fault(update: Weights, weights: Weights) -> str | None:
    if update.shape != weights.shape:
        return f"an update of shape {update.shape} for weights of shape {weights.shape}"
    if update.dtype.kind != "f":
        return f"an update of {update.dtype}, which must be of floats"
    low, high = (float(update.min()), float(update.max())) if update.size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        return NOT_FINITE
    if max(-low, high) > MAX_CHANGE:
        return f"a change of {max(-low, high):g} in one parameter, which must be at most {MAX_CHANGE:g}"
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
    claims = {"weight": report.weight, "trained": summary.trained}
    most: dict[str, float] = {"weight": size, "trained": size}
    if not summary.read_by_server:  # statistics that the server computed are no claims of the client
        claims |= {name: getattr(summary, name) for name in _STATISTICS}
        most |= {
            "loss_low": MAX_LOSS, "loss_high": MAX_LOSS, "loss_sum": MAX_LOSS * size, "loss_count": size,
            "over_count": 2 * size + max(SLACK_COUNT, slack), "over_sumsq": MAX_LOSS**2 * size,
        }  # fmt: skip
    for name, bound in most.items():
        if abs(claims[name]) > bound:
            return f"{name} {claims[name]:g}, which must be at most {bound:g} with {size} samples"
    return None


def _epochs_fault(report: ClientReport, order: Order) -> str | None:
    most = order.epochs * (1 + order.repeats)
    if order.most_steps is not None:
        most = order.most_steps / order.per_epoch(max(report.summary.trained, 1))
    if 0 < report.epochs <= most * (1 + 1e-9):  # False for NaN
        return None
    return f"epochs {report.epochs:g}, which must be over 0 and at most the {most:g} ordered"


def _latency_fault(report: ClientReport, order: Order, slack_s: float) -> str | None:
    """Check that the batches did not take longer than the whole round of the client."""
    took_s, claimed_s = report.timings.total_s, report.summary.batch_s
    if took_s <= 0 or not math.isfinite(took_s):  # not measured
        return None
    per_epoch = order.per_epoch(report.summary.trained)
    batches = 1.0 if report.summary.withholds_counts else max(report.epochs * per_epoch, 1.0)
    most_s = (took_s + slack_s) / batches
    if claimed_s > most_s * (1 + ROUNDING):
        return f"batch_s {claimed_s:g}, which must be at most {most_s:g}: {batches:g} batches, {took_s:g} s in total"
    return None


def _consistency_fault(summary: Summary, size: int, threshold: float, slack: float) -> str | None:
    """Check that the statistics can come from one list of losses. Each may be off by `slack`, and all by rounding."""
    low, count = summary.loss_low, summary.loss_count
    if low > summary.loss_high + 2 * slack + ROUNDING * abs(low):
        return f"loss_low {low:g}, which must be at most loss_high {summary.loss_high:g}"
    least = count * low - slack * (1 + count)
    if summary.loss_sum < least - ROUNDING * (1 + abs(least)):
        return f"loss_sum {summary.loss_sum:g}, which must be at least {least:g}: {count:g} losses of at least {low:g}"
    if summary.over_count > size * (1 + ROUNDING) + slack:
        return f"over_count {summary.over_count:g}, which must be at most {size} samples"
    least = (summary.over_count - slack) * max(threshold, 0.0) ** 2 - slack
    if summary.over_sumsq < least - ROUNDING * (1 + abs(least)):
        return f"over_sumsq {summary.over_sumsq:g}, which must be at least {least:g}: all are over the threshold"
    return None


_STATISTICS = ("loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq")
