"""Reports of clients that are still at work when their round closes, and what they change about when rounds close.

What such a client reports is computed when it starts, from the model that it was sent, and kept until the simulated
clock comes to it: so a checkpoint of these reports is all that a resumed run needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import ClientReport, Ledger, RoundPlan, Summary, Timings
from fedbalancer.simulation.attempts import Attempts, close_round

_NUMBERS = tuple(each.name for each in fields(Summary) if each.name not in ("released", "read_by_server", "estimated"))


@dataclass(frozen=True, eq=False)
class Pending:
    """A report of `round` that comes at `arrives_s` on the clock."""

    report: ClientReport
    round: int
    arrives_s: float

    def joining(self, round: int) -> ClientReport:
        """The report as it counts in a later round."""
        return replace(self.report, staleness=round - self.round)


class Reports(tuple[Pending, ...]):
    """All pending reports, in order of client id; at most one of a client, who is not asked while it has one."""

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(each.report.client for each in self)

    def without(self, taken: Iterable[Pending]) -> Reports:
        gone = {each.report.client for each in taken}
        return Reports(each for each in self if each.report.client not in gone)

    def and_these(self, more: Iterable[Pending]) -> Reports:
        return Reports(sorted([*self, *more], key=lambda each: each.report.client))

    def to_arrays(self, ledger: Ledger) -> dict[str, Any]:
        """Everything as arrays with a row per report; nothing where there is none."""
        if not self:
            return {}
        reports = [each.report for each in self]
        return {
            "pending_row": ledger.rows(self.clients),
            "pending_round": np.array([each.round for each in self], dtype=np.int64),
            "pending_arrives_s": np.array([each.arrives_s for each in self]),
            "pending_update": np.stack([report.update for report in reports]),
            "pending_amount": np.array([(report.weight, report.epochs) for report in reports]),
            "pending_summary": np.array([[getattr(r.summary, name) for name in _NUMBERS] for r in reports]),
            "pending_released": np.array([report.summary.released for report in reports], dtype=np.float64),
            "pending_timings": np.array([astuple(report.timings) for report in reports]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], ledger: Ledger) -> Reports:
        """What `to_arrays` gave."""
        if "pending_row" not in arrays:
            return cls()
        columns = {name.removeprefix("pending_"): values for name, values in arrays.items() if "pending_" in name}
        return cls(
            _pending(ledger.clients[row], {name: values[place] for name, values in columns.items()})
            for place, row in enumerate(columns["row"].tolist())
        )


def _pending(client: str, saved: Mapping[str, Any]) -> Pending:
    told = dict(zip(_NUMBERS, saved["summary"].tolist(), strict=True))
    summary = Summary(**told | {"trained": int(told["trained"])}, released=tuple(saved["released"].tolist()))
    weight, epochs = saved["amount"].tolist()
    timings = Timings(*saved["timings"].tolist())
    report = ClientReport(client, np.array(saved["update"]), weight, epochs, summary, timings)
    return Pending(report, int(saved["round"]), float(saved["arrives_s"]))


def close_reports(
    plan: RoundPlan, attempts: Attempts, pending: Reports, start_s: float
) -> tuple[NDArray[np.bool_], list[Pending], float]:
    """Who of the cohort is accepted, which pending reports are, and when the round closes that started at `start_s`."""
    if plan.late == "counts":
        return _with_buffer(plan, attempts, pending, start_s)
    accepted, seconds = close_round(plan, attempts)
    if plan.late == "lost":
        return accepted, [], seconds
    if not accepted.any() and not (plan.cohort and math.isfinite(plan.order.deadline_s)):  # nobody else to wait for
        seconds = max(min((each.arrives_s for each in pending), default=start_s) - start_s, 0.0)
    return accepted, [each for each in pending if each.arrives_s - start_s <= seconds], seconds


def _with_buffer(
    plan: RoundPlan, attempts: Attempts, pending: Reports, start_s: float
) -> tuple[NDArray[np.bool_], list[Pending], float]:
    """The first `quorum` reports by time, of equal times by client id, whenever their clients started."""
    coming = [(each.arrives_s - start_s, each.report.client, place) for place, each in enumerate(pending)]
    started = len(coming)
    for place in np.flatnonzero(attempts.makes_it).tolist():
        coming.append((float(attempts.elapsed_s[place]), attempts.clients[place], started + place))
    deadline_s = plan.order.deadline_s
    first = [each for each in sorted(coming) if each[0] <= deadline_s][: plan.quorum]
    accepted = np.zeros(len(attempts.clients), dtype=bool)
    accepted[[place - started for _, _, place in first if place >= started]] = True
    stale = [pending[place] for _, _, place in first if place < started]
    if len(first) < plan.quorum and math.isfinite(deadline_s):
        return accepted, stale, deadline_s
    return accepted, stale, max(first[-1][0], 0.0) if first else 0.0
