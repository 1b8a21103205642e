"""The server's ledger of real clients, and the measurements that update it: speeds and transport times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbalancer.core.types import ClientReport, Ledger
from fedbalancer.core.types.state import Positions
from fedbalancer.flower.reading import Greeting

ASSUMED_BATCH_S = 0.1
"""Assumed seconds per batch if no client has measured any."""
MOST_TIMES = 20.0
"""Upper bound on a client's time for all samples, in multiples of the median. Without it one client could postpone
every deadline. If it is really slower, its reports show it."""
ENOUGH = 3
"""Smallest number of clients for that bound."""

WINDOW, FEW = 5, 3
"""Transport times kept per client, and the least number for the outlier rule."""
ODD = 2.0
"""A time more than this many times the second longest is an outlier once another time has followed it."""
JITTER_S = 3.0
"""SuperNodes poll every three seconds, so a single measurement may be this much too short."""
WORSE = 0.25
"""Share of the longest time by which the next may be longer: a machine that starts a process per message slows down."""
LEAST_SHARE = 0.1
"""Smallest share of the deadline that a client gets: one slow round trip must not exclude it for good."""


def make_ledger(
    greetings: Sequence[Greeting], others_batch_s: float | None = None, others_s: Sequence[float] = ()
) -> Ledger:
    """Build the ledger of clients before their first round.

    A client without batch latencies gets the mean of the others, until it is measured.

    Args:
        greetings: The clients.
        others_batch_s: Mean seconds per batch of clients that are already known.
        others_s: Their seconds per batch times their number of samples.
    """
    measured = [np.mean(greeting.batch_s) for greeting in greetings if greeting.batch_s]
    assumed = float(np.mean(measured)) if measured else others_batch_s or ASSUMED_BATCH_S
    latencies = [greeting.batch_s or (assumed,) for greeting in greetings]
    latencies = _limit_latencies(latencies, [greeting.size for greeting in greetings], others_s)
    ledger = Ledger.start(
        tuple(greeting.client for greeting in greetings),
        np.array([greeting.size for greeting in greetings], dtype=np.int64),
        np.array([greeting.network_s for greeting in greetings], dtype=np.float64),
        np.array([[sum(row)] for row in latencies], dtype=np.float64).reshape(len(greetings), 1),
    )
    return replace(ledger, batch_s_count=np.array([len(row) for row in latencies], dtype=np.int32))


def _limit_latencies(
    latencies: Sequence[tuple[float, ...]], sizes: Sequence[int], others_s: Sequence[float]
) -> list[tuple[float, ...]]:
    """Shorten the latencies of clients whose samples would take far longer than those of the others."""
    times_s = [size * float(np.mean(row)) for row, size in zip(latencies, sizes, strict=True)]
    if len(times_s) + len(others_s) < ENOUGH:
        return list(latencies)
    most_s = MOST_TIMES * float(np.median([*times_s, *others_s]))
    shares = [min(1.0, most_s / time_s) for time_s in times_s]
    return [
        row if share == 1.0 else tuple(share * one for one in row) for row, share in zip(latencies, shares, strict=True)
    ]


def add_clients(ledger: Ledger, greetings: Sequence[Greeting]) -> Ledger:
    """Append rows for new clients, and update the sizes of known ones. Existing rows never move."""
    ledger = _update_sizes(ledger, greetings)
    new = sorted((g for g in greetings if g.client not in ledger.position), key=lambda g: g.client)
    if not new:
        return ledger
    batch_s = float(ledger.batch_s.mean()) if len(ledger.clients) else None
    added = make_ledger(new, batch_s, (ledger.size * ledger.batch_s).tolist())
    clients = (*ledger.clients, *added.clients)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(ledger, name), getattr(added, name)])
        for name in vars(ledger)
        if name not in ("clients", "position", "tags")
    }
    return replace(ledger, clients=clients, position=Positions(clients), **columns)


def _update_sizes(ledger: Ledger, greetings: Sequence[Greeting]) -> Ledger:
    sizes = {g.client: g.size for g in greetings if g.client in ledger.position}
    rows = ledger.rows(tuple(sizes))
    if (ledger.size[rows] == list(sizes.values())).all():
        return ledger
    size = ledger.size.copy()
    size[rows] = list(sizes.values())
    return replace(ledger, size=size)


def with_network_times(ledger: Ledger, network_s: Mapping[str, float]) -> Ledger:
    """Replace the transport times of the clients in `network_s`."""
    listed = {client: seconds for client, seconds in network_s.items() if client in ledger.position}
    if not listed:
        return ledger
    column = ledger.network_s.copy()
    column[ledger.rows(tuple(listed))] = list(listed.values())
    return replace(ledger, network_s=column)


class TransportTimes:
    """The last transport times of every client: round trip minus the seconds that the client was busy.

    `jitter_s` is by how much polling alone may lengthen the next one.
    """

    jitter_s = JITTER_S

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._only_greeted: set[str] = set()
        self._first_orders: set[str] = set()

    def add_greeting(self, client: str, seconds: float) -> None:
        """Add the time of a greeting. It carries no model, so it is an assumption until the first order."""
        if client not in self._seen:
            self._only_greeted.add(client)
        self._add(client, seconds)

    def add_order(self, client: str, seconds: float) -> None:
        """Add the time of an answered order."""
        self.add_lower_bound(client, seconds)
        self._only_greeted.discard(client)

    def add_lower_bound(self, client: str, seconds: float) -> None:
        """Add a lower bound for an order that was never answered."""
        if client in self._only_greeted:
            self._first_orders.add(client)
        self._add(client, seconds)

    def take_first_orders(self) -> set[str]:
        """Return the clients whose first order was measured since the last call."""
        first_orders, self._first_orders = self._first_orders, set()
        return first_orders

    def _add(self, client: str, seconds: float) -> None:
        self._seen.setdefault(client, deque(maxlen=WINDOW)).append(max(seconds, 0.0))

    def expected_s(self, client: str) -> float:
        """Return the expected seconds of the next transport.

        This is the longest recent time plus a margin: the polling jitter, half the range of the times, or a share of
        the longest, whichever is largest. With the mean, half of the reports would be late, and a round closes early
        anyway when all reports are in.
        """
        seen = list(self._seen.get(client, ()))
        if not seen:
            return 0.0
        usual = sorted(seen)
        if len(seen) >= FEW and usual[-1] > ODD * usual[-2] and usual[-1] != seen[-1]:
            usual.pop()
        return usual[-1] + max(self.jitter_s, (usual[-1] - usual[0]) / 2, WORSE * usual[-1])

    def budget_s(self, client: str, round_number: int, deadline_s: float) -> float:
        """Return the seconds that a client may work so that its report arrives before the deadline."""
        return max(deadline_s - self.expected_s(client), LEAST_SHARE * deadline_s)

    def all_expected_s(self) -> dict[str, float]:
        """Return `expected_s` of every client."""
        return {client: self.expected_s(client) for client in self._seen}

    def to_json(self) -> dict[str, list[float]]:
        return {client: list(seen) for client, seen in self._seen.items()}

    def load(self, saved: dict[str, list[float]]) -> None:
        self._seen = {client: deque(seen, maxlen=WINDOW) for client, seen in saved.items()}


class ClientSpeeds:
    """Measured seconds per batch, and the clients whose speed is only assumed.

    Measurements come from reports, late replies and clients that stopped at the deadline. The first one of a client
    replaces its assumed speed.
    """

    def __init__(self) -> None:
        self.assumed: set[str] = set()
        self._measurements: list[tuple[str, float]] = []

    def add_clients(self, greetings: Iterable[Greeting]) -> None:
        """Add new clients. The speed of those without a measurement is assumed."""
        self.assumed |= {greeting.client for greeting in greetings if not greeting.batch_s}

    def add_measurement(self, client: str, batch_s: float | None) -> None:
        """Add a measurement from a reply that does not count as a report."""
        if batch_s is not None:
            self._measurements.append((client, batch_s))

    def rescale(self, ledger: Ledger, factor: float) -> Ledger:
        """Multiply all speeds by `factor` after a change of the batch size, as assumptions."""
        self.assumed |= set(ledger.clients)
        ones = np.ones(len(ledger.clients), dtype=np.int32)
        return replace(ledger, batch_s_sum=factor * ledger.batch_s, batch_s_count=ones)

    def update_speeds(self, ledger: Ledger, reports: Sequence[ClientReport] = ()) -> Ledger:
        """Add all measurements since the last call to the ledger.

        Clients whose speed is still assumed get the mean of the measured ones.

        Args:
            ledger: The ledger, in which `reports` are already recorded.
            reports: The reports of the last round.
        """
        first = {report.client: report.summary.batch_s for report in reports if report.client in self.assumed}
        others = [(client, batch_s) for client, batch_s in self._measurements if client in ledger.position]
        self._measurements = []
        if not first and not others:
            return ledger
        total_s, count = ledger.batch_s_sum.copy(), np.array(ledger.batch_s_count)
        for client, batch_s in [*first.items(), *others]:
            row, replaces = ledger.position[client], client in self.assumed
            total_s[row], count[row] = (batch_s, 1) if replaces else (total_s[row] + batch_s, count[row] + 1)
            self.assumed.discard(client)
        rows = ledger.rows(tuple(sorted(self.assumed & set(ledger.clients))))
        measured = np.setdiff1d(np.arange(len(ledger.clients)), rows)
        if len(measured):
            total_s[rows], count[rows] = (total_s[measured] / count[measured]).mean(), 1
        return replace(ledger, batch_s_sum=total_s, batch_s_count=count)
