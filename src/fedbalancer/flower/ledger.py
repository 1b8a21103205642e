"""The server's ledger of real clients: it starts with those that introduced themselves, and grows when others join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbalancer.core.name_index import Positions
from fedbalancer.core.types import Ledger
from fedbalancer.flower.hello import Greeting

ASSUMED_BATCH_S = 0.1
"""Of a client that did not measure, where nobody else did either."""
MOST_TIMES = 20.0
"""A client is not believed to take longer for its samples than so many times the median client: one that says so could
put off every deadline. If it does take longer, its reports will tell."""
ENOUGH = 3
"""Clients that it takes for a median to mean anything."""


def ledger_of(
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
    added = ledger_of(fresh, known, (ledger.size * ledger.batch_s).tolist())
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


def with_network(ledger: Ledger, network_s: Mapping[str, float]) -> Ledger:
    """The ledger with what transport really took in place of what was expected."""
    known = {client: seconds for client, seconds in network_s.items() if client in ledger.position}
    if not known:
        return ledger
    column = ledger.network_s.copy()
    column[ledger.rows(tuple(known))] = list(known.values())
    return replace(ledger, network_s=column)
