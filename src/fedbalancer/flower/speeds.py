"""How fast clients train, as the server hears it: in reports that count, in those that come too late, and in the word
of a client that stopped itself. Where nobody has measured it is an assumption, which the first measurement replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedbalancer.core.types import ClientReport, Ledger
from fedbalancer.flower.hello import Greeting


class Speeds:
    """Whose batch latencies are assumed, and what was heard since the last round beside its reports."""

    def __init__(self) -> None:
        self.assumed: set[str] = set()
        self._heard: list[tuple[str, float]] = []

    def met(self, greetings: Iterable[Greeting]) -> None:
        """Clients that are new; of those without a measurement the speed is assumed."""
        self.assumed |= {greeting.client for greeting in greetings if not greeting.batch_s}

    def heard(self, client: str, batch_s: float | None) -> None:
        """A measurement in a reply that does not count."""
        if batch_s is not None:
            self._heard.append((client, batch_s))

    def rescaled(self, ledger: Ledger, factor: float) -> Ledger:
        """Batches have another size now: what was measured is an assumption, in proportion, until somebody has measured
        again."""
        self.assumed |= set(ledger.clients)
        ones = np.ones(len(ledger.clients), dtype=np.int32)
        return replace(ledger, batch_s_sum=factor * ledger.batch_s, batch_s_count=ones)

    def update_speeds(self, ledger: Ledger, reports: Sequence[ClientReport] = ()) -> Ledger:
        """The ledger, in which the `reports` of a round are recorded, with all else that was measured: a measurement
        takes the place of an assumption, and those still assumed are as fast as the others."""
        first = {report.client: report.summary.batch_s for report in reports if report.client in self.assumed}
        heard = [(client, batch_s) for client, batch_s in self._heard if client in ledger.position]
        self._heard = []
        if not first and not heard:
            return ledger
        total_s, count = ledger.batch_s_sum.copy(), np.array(ledger.batch_s_count)
        for client, batch_s in [*first.items(), *heard]:
            row, replaces = ledger.position[client], client in self.assumed
            total_s[row], count[row] = (batch_s, 1) if replaces else (total_s[row] + batch_s, count[row] + 1)
            self.assumed.discard(client)
        rows = ledger.rows(tuple(sorted(self.assumed & set(ledger.clients))))
        known = np.setdiff1d(np.arange(len(ledger.clients)), rows)
        if len(known):
            total_s[rows], count[rows] = (total_s[known] / count[known]).mean(), 1
        return replace(ledger, batch_s_sum=total_s, batch_s_count=count)
