"""Clients that sent what cannot be believed sit out: one round, then two, then four, for as long as they go on so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedbalancer.server.report_check import INVALID
from fedbalancer.types import RoundResult

MOST_ROUNDS = 64


class Bench:
    """Who sits out, and until when. A report that is believed makes good for all that was before."""

    def __init__(self) -> None:
        self._offences: dict[str, int] = {}
        self._until: dict[str, int] = {}
        self._round = 0

    def note(self, result: RoundResult) -> dict[str, int]:
        """Take note of a round; returns who has to sit out from now on, and until which round."""
        self._round = result.plan.order.round
        for report in result.reports:
            self._offences.pop(report.client, None)
            self._until.pop(report.client, None)
        benched = {}
        for client in (missing.client for missing in result.missing if missing.why == INVALID):
            self._offences[client] = self._offences.get(client, 0) + 1
            out = min(2 ** (self._offences[client] - 1), MOST_ROUNDS)
            benched[client] = self._until[client] = self._round + out
        return benched

    def without(self, clients: Iterable[str]) -> list[str]:
        """Those of the clients that may take part in the next round; all, if nobody else is left."""
        everybody = list(clients)
        return [client for client in everybody if self._until.get(client, 0) <= self._round] or everybody

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"offences": self._offences, "until": self._until, "round": self._round}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take up what a checkpoint has."""
        self._offences, self._until = dict(saved.get("offences", {})), dict(saved.get("until", {}))
        self._round = int(saved.get("round", 0))
