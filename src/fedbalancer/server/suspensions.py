"""Clients that sent an invalid report, or none at all, sit out: one round, then two, then four, until they report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from fedbalancer.core.types import IndexArray, Ledger, RoundResult

MOST_ROUNDS = 64
INVALID = "invalid"
"""Why a client is missing whose report was not believed."""


@dataclass(frozen=True)
class Suspensions:
    """Suspended clients; part of the server's state, so it survives a restart.

    Args:
        offences: Consecutive offences of each client.
        until: Last round of each client's suspension.
        fruitless_rounds: Consecutive rounds without a single valid report.
        silent: Clients whose last offence was not to answer.
    """

    offences: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    fruitless_rounds: int = 0
    silent: tuple[str, ...] = ()

    def after(self, result: RoundResult) -> Suspensions:
        """The bench after a round. A report that is believed makes good for all that was before."""
        offenders = [missing.client for missing in result.missing if missing.why == INVALID]
        if not offenders and not self.offences and not self.fruitless_rounds:
            return self
        good = {report.client for report in result.reports}
        suspensions = self._without(good)._suspended(offenders, result.plan.order.round)
        silent = tuple(client for client in suspensions.silent if client not in offenders)
        return replace(
            suspensions, fruitless_rounds=self.fruitless_rounds + 1 if offenders and not good else 0, silent=silent
        )

    def unanswered(self, clients: Iterable[str], round: int) -> Suspensions:
        """The bench after `round`, by which these clients have left an order without any answer."""
        quiet = list(clients)
        if not quiet:
            return self
        suspensions = self._suspended(quiet, round)
        return replace(suspensions, silent=tuple(sorted({*suspensions.silent, *quiet})))

    def answering(self, clients: Iterable[str]) -> Suspensions:
        """The bench after these clients have restarted: silence before that no longer counts."""
        back = set(clients) & set(self.silent)
        return self._without(back) if back else self

    def _suspended(self, clients: Iterable[str], round: int) -> Suspensions:
        offences, until = dict(self.offences), dict(self.until)
        for client in clients:
            offences[client] = offences.get(client, 0) + 1
            until[client] = round + min(2 ** (offences[client] - 1), MOST_ROUNDS)
        return replace(self, offences=offences, until=until)

    def _without(self, clients: Set[str]) -> Suspensions:
        kept = {client: count for client, count in self.offences.items() if client not in clients}
        until = {client: last for client, last in self.until.items() if client not in clients}
        return replace(self, offences=kept, until=until, silent=tuple(c for c in self.silent if c not in clients))

    def without(self, clients: Iterable[str], round: int) -> list[str]:
        """Those of the clients that may take part in the round after `round`; all, if nobody else is left."""
        everybody = list(clients)
        return [client for client in everybody if self.until.get(client, 0) <= round] or everybody

    def rows_without(self, ledger: Ledger, rows: IndexArray, round: int) -> IndexArray:
        """The same for rows of a ledger."""
        out = [ledger.position[client] for client, last in self.until.items() if last > round]
        if not out:
            return rows
        left = rows[~np.isin(rows, out)]
        return left if len(left) else rows
