"""The server's ledger of real clients: it starts with those that introduced themselves, and grows when others join."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbalancer.core.name_index import Positions
from fedbalancer.core.types import ClientReport, Ledger
from fedbalancer.flower.reading import Greeting

ASSUMED_BATCH_S = 0.1
"""Of a client that did not measure, where nobody else did either."""
MOST_TIMES = 20.0
"""A client is not believed to take longer for its samples than so many times the median client: one that says so could
put off every deadline. If it does take longer, its reports will tell."""
ENOUGH = 3
"""Clients that it takes for a median to mean anything."""


def make_ledger(
    greetings: Sequence[Greeting], others_batch_s: float | None = None, others_s: Sequence[float] = ()
) -> Ledger:
    """A ledger of these clients, as before the first round. One that gave no batch latencies counts with the mean of
    the others, until something was measured (`speeds.py`). `others_s` is how long clients that are known already take
    for a batch, times their samples."""
    measured = [np.mean(greeting.batch_s) for greeting in greetings if greeting.batch_s]
    assumed = float(np.mean(measured)) if measured else others_batch_s or ASSUMED_BATCH_S
    latencies = [greeting.batch_s or (assumed,) for greeting in greetings]
    latencies = _bounded(latencies, [greeting.size for greeting in greetings], others_s)
    started = Ledger.start(
        tuple(greeting.client for greeting in greetings),
        np.array([greeting.size for greeting in greetings], dtype=np.int64),
        np.array([greeting.network_s for greeting in greetings], dtype=np.float64),
        np.array([[sum(row)] for row in latencies], dtype=np.float64).reshape(len(greetings), 1),
    )
    return replace(started, batch_s_count=np.array([len(row) for row in latencies], dtype=np.int32))


def _bounded(
    latencies: Sequence[tuple[float, ...]], sizes: Sequence[int], others_s: Sequence[float]
) -> list[tuple[float, ...]]:
    """The latencies, shortened where all samples of a client would take far longer than anybody else's."""
    times_s = [size * float(np.mean(row)) for row, size in zip(latencies, sizes, strict=True)]
    if len(times_s) + len(others_s) < ENOUGH:
        return list(latencies)
    most_s = MOST_TIMES * float(np.median([*times_s, *others_s]))
    shares = [min(1.0, most_s / time_s) for time_s in times_s]
    return [
        row if share == 1.0 else tuple(share * one for one in row) for row, share in zip(latencies, shares, strict=True)
    ]


def joined(ledger: Ledger, greetings: Sequence[Greeting]) -> Ledger:
    """The ledger with rows for clients that it does not have yet, behind the others: rows never move. A client that
    came back with more or fewer samples has its new size."""
    ledger = _resized(ledger, greetings)
    fresh = sorted((g for g in greetings if g.client not in ledger.position), key=lambda g: g.client)
    if not fresh:
        return ledger
    known = float(ledger.batch_s.mean()) if len(ledger.clients) else None
    added = make_ledger(fresh, known, (ledger.size * ledger.batch_s).tolist())
    clients = (*ledger.clients, *added.clients)
    columns = {
        name: np.concatenate([getattr(ledger, name), getattr(added, name)])
        for name in vars(ledger)
        if name not in ("clients", "position")
    }
    return replace(ledger, clients=clients, position=Positions(clients), **columns)


def _resized(ledger: Ledger, greetings: Sequence[Greeting]) -> Ledger:
    said = {g.client: g.size for g in greetings if g.client in ledger.position}
    rows = ledger.rows(tuple(said))
    if (ledger.size[rows] == list(said.values())).all():
        return ledger
    size = ledger.size.copy()
    size[rows] = list(said.values())
    return replace(ledger, size=size)


def with_network_times(ledger: Ledger, network_s: Mapping[str, float]) -> Ledger:
    """The ledger with what transport really took in place of what was expected."""
    known = {client: seconds for client, seconds in network_s.items() if client in ledger.position}
    if not known:
        return ledger
    column = ledger.network_s.copy()
    column[ledger.rows(tuple(known))] = list(known.values())
    return replace(ledger, network_s=column)


WINDOW, FEW = 5, 3
ODD = 2.0
"""An overhead so many times the next longest is left out once another has followed: it was a single message."""
JITTER_S = 3.0
"""SuperNodes ask for messages every three seconds, so that one measurement may be so much too lucky."""

WORSE = 0.25
"""Share of the worst overhead that the next may be worse by: a machine that starts a process a message gets busier."""

LEAST_SHARE = 0.1
"""Of its deadline, that a client always gets: one slow round trip must not lock it out for good."""


class TransportTimes:
    """The last few overheads of every client; `jitter_s` is by how much polling alone may make the next worse."""

    jitter_s = JITTER_S

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._greeted: set[str] = set()
        self._carried: set[str] = set()

    def add_greeting(self, client: str, seconds: float) -> None:
        """Remember the overhead of a greeting, which carries no model: until one was carried it is an assumption."""
        if client not in self._seen:
            self._greeted.add(client)
        self._remember(client, seconds)

    def add_order(self, client: str, seconds: float) -> None:
        """Remember the overhead of an order."""
        self.add_lower_bound(client, seconds)
        self._greeted.discard(client)

    def add_lower_bound(self, client: str, seconds: float) -> None:
        """Remember a lower bound of the overhead of an order that was never answered."""
        if client in self._greeted:
            self._carried.add(client)
        self._remember(client, seconds)

    def take_first_orders(self) -> set[str]:
        """The clients whose greeting was an assumption until something was learned of an order since the last call."""
        carried, self._carried = self._carried, set()
        return carried

    def _remember(self, client: str, seconds: float) -> None:
        self._seen.setdefault(client, deque(maxlen=WINDOW)).append(max(seconds, 0.0))

    def expected_s(self, client: str) -> float:
        """The worst of late and some more, because the next may be worse: the jitter of Flower's polling, half of how
        much they differ, or a share of the worst, whichever is most. By the mean, half of the reports would come too
        late, and a round closes early anyway when all are in."""
        seen = list(self._seen.get(client, ()))
        if not seen:
            return 0.0
        usual = sorted(seen)
        if len(seen) >= FEW and usual[-1] > ODD * usual[-2] and usual[-1] != seen[-1]:
            usual.pop()
        return usual[-1] + max(self.jitter_s, (usual[-1] - usual[0]) / 2, WORSE * usual[-1])

    def budget_s(self, client: str, round: int, deadline_s: float) -> float:
        """What a client may take from its start to its report, so that this arrives in time."""
        return max(deadline_s - self.expected_s(client), LEAST_SHARE * deadline_s)

    def all_expected_s(self) -> dict[str, float]:
        """What to expect of every client."""
        return {client: self.expected_s(client) for client in self._seen}

    def to_json(self) -> dict[str, list[float]]:
        return {client: list(seen) for client, seen in self._seen.items()}

    def load(self, saved: dict[str, list[float]]) -> None:
        self._seen = {client: deque(seen, maxlen=WINDOW) for client, seen in saved.items()}


class ClientSpeeds:
    """Whose batch latencies are assumed, and what was heard since the last round beside its reports."""

    def __init__(self) -> None:
        self.assumed: set[str] = set()
        self._heard: list[tuple[str, float]] = []

    def add_clients(self, greetings: Iterable[Greeting]) -> None:
        """Clients that are new; of those without a measurement the speed is assumed."""
        self.assumed |= {greeting.client for greeting in greetings if not greeting.batch_s}

    def add_measurement(self, client: str, batch_s: float | None) -> None:
        """A measurement in a reply that does not count."""
        if batch_s is not None:
            self._heard.append((client, batch_s))

    def rescale(self, ledger: Ledger, factor: float) -> Ledger:
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
