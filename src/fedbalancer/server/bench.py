"""Clients that sent what cannot be believed sit out: one round, then two, then four, for as long as they go on so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedbalancer.types import IndexArray, Ledger, RoundResult

MOST_ROUNDS = 64
INVALID = "invalid"
"""Why a client is missing whose report was not believed."""


@dataclass(frozen=True)
class Bench:
    """Who sits out, and until when: by client the offences in a row, and the last round without it. `in_vain` counts
    the rounds in a row whose reports were all not believed. A part of the server's state, so it outlives a restart."""

    offences: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    in_vain: int = 0

    def after(self, result: RoundResult) -> Bench:
        """The bench after a round. A report that is believed makes good for all that was before."""
        offenders = [missing.client for missing in result.missing if missing.why == INVALID]
        if not offenders and not self.offences and not self.in_vain:
            return self
        good = {report.client for report in result.reports}
        offences = {client: count for client, count in self.offences.items() if client not in good}
        until = {client: last for client, last in self.until.items() if client not in good}
        for client in offenders:
            offences[client] = offences.get(client, 0) + 1
            until[client] = result.plan.order.round + min(2 ** (offences[client] - 1), MOST_ROUNDS)
        return Bench(offences, until, self.in_vain + 1 if offenders and not good else 0)

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
