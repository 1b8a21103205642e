"""Suspensions of clients that send invalid reports or none: for one round, then two, then four, until they report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from fedbalancer.core.types import IndexArray, Ledger, RoundResult

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
        fruitless_rounds: Consecutive rounds without a single valid report.
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
        return replace(
            suspensions, fruitless_rounds=self.fruitless_rounds + 1 if offenders and not good else 0, silent=silent
        )

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
