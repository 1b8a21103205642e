"""Reports that come after their round has closed, under a method that counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbalancer.core.types import ClientReport, FailedClient, RoundPlan
from fedbalancer.flower.compat import RecordDict
from fedbalancer.flower.orders import TRAIN

if TYPE_CHECKING:
    from fedbalancer.flower.mailbox import Arrival, Mailbox
    from fedbalancer.flower.round import OpenRound

SILENT = "silent"
"""Why a client is missing that has not answered when its round closes, or ever."""


@dataclass(frozen=True, eq=False)
class LateReport:
    """A report of `round` that has come, with the metrics of its client."""

    report: ClientReport
    round: int
    metrics: RecordDict
    up_bytes: int

    def joining(self, round: int) -> ClientReport:
        """The report as it counts in a later round."""
        return replace(self.report, staleness=round - self.round)


class LateReports:
    """Who is under way, and what has come of it. Every client that was leaves by one door: its report joins a round, or
    it is missing in one. Until then nobody asks it for anything else. A server that dies loses what had not joined."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._closed: dict[int, OpenRound] = {}
        self._under_way: set[str] = set()
        self.arrived: list[LateReport] = []
        self.ended: dict[str, FailedClient] = {}

    def take(self, arrival: Arrival) -> bool:
        """A reply to a closed round; whether it will count."""
        closed = self._closed.get(arrival.sent.round)
        if closed is None:
            return False
        found = closed.read(arrival)
        if isinstance(found, FailedClient):
            self.ended[found.client] = found
            return False
        self.keep(found, closed, arrival)
        return True

    def keep(self, report: ClientReport, of: OpenRound, arrival: Arrival) -> None:
        """A report for which there was no room in its round, or whose round is over."""
        self.arrived.append(LateReport(report, of.plan.order.round, *of.beside(report, arrival)))

    @property
    def waiting(self) -> set[str]:
        """Clients of closed rounds that have yet to answer."""
        return {sent.client for sent in self._mailbox.waiting(TRAIN) if sent.round in self._closed}

    @property
    def clients(self) -> set[str]:
        """Who cannot be asked before a round has heard of what it did."""
        return {*(each.report.client for each in self.arrived), *self.ended}

    @property
    def is_empty(self) -> bool:
        return not (self.arrived or self.ended or self.waiting)

    def joining(self, plan: RoundPlan, in_time: int) -> list[LateReport]:
        """Those that count in a round which has so many reports of its own: all of earlier rounds, or as many of the
        first as its quorum leaves."""
        earlier = [each for each in self.arrived if each.round < plan.order.round]
        joins = earlier if plan.late == "joins" else self.arrived[: max(plan.quorum - in_time, 0)]
        self.arrived = [each for each in self.arrived if each not in joins]
        return joins

    def closes(self, round: OpenRound, heard: Iterable[str]) -> tuple[dict[str, FailedClient], tuple[str, ...]]:
        """A round closes in which these clients were heard of: who came to nothing since the last, and who of all is
        still under way."""
        self._closed[round.plan.order.round] = round
        open_rounds = {sent.round for sent in self._mailbox.waiting(TRAIN)}
        self._closed = {number: kept for number, kept in self._closed.items() if number in open_rounds}
        still = {*self.waiting, *(each.report.client for each in self.arrived)}
        gone = self._under_way - still - set(heard) - set(self.ended)
        ended = self.ended | {client: FailedClient(client, SILENT) for client in gone}
        self._under_way, self.ended = still, {}
        return ended, tuple(sorted(still))
