"""The server's ledger of clients, its setup, and its state between rounds."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types.arrays import CountArray, FloatArray, IndexArray, Weights
from fedbalancer.core.types.round import RoundResult


class Positions(Mapping[str, int]):
    """Like `{name: row for row, name in enumerate(names)}` of different names, but found by bisection. A dictionary is
    quicker, and takes seventy bytes more per name: too many for a million clients.

    >>> Positions(("ann", "cid", "bob"))["bob"]
    2
    """

    __slots__ = ("_order", "_sorted", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._sorted, self._order = names, None
        if not all(map(operator.lt, names, islice(names, 1, None))):
            order = sorted(range(len(names)), key=names.__getitem__)
            self._sorted = tuple(names[row] for row in order)
            self._order = np.array(order, dtype=np.int32)

    _sorted: tuple[str, ...]
    _order: NDArray[np.int32] | None

    def __getitem__(self, name: str) -> int:
        place = bisect_left(self._sorted, name)
        if place == len(self._sorted) or self._sorted[place] != name:
            raise KeyError(name)
        return place if self._order is None else int(self._order[place])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, names: Iterable[str]) -> NDArray[np.int64]:
        """The positions of the given names."""
        return np.fromiter(map(self.__getitem__, names), dtype=np.int64)


RECENT_COUNTS = 5
"""How many trained-sample counts the ledger remembers per client."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """A row per client, stored as columns so that a million clients stay cheap.

    `network_s` is the expected download plus upload (size over mean speed), `batch_s_*` all batch latencies that the
    server has seen (the ten before training included), `recent_trained` the last five counts of trained samples
    (at first the full size), `over_*` and `loss_mean` the client's last released summary (NaN before the first),
    `loss_first` what the mean loss was in the first of them that had one (in four bytes),
    `participations` its successful rounds, `last_round` the last of them (0 = never).

    A ledger is a value: `record` gives the next one and leaves this one as it is, by copying what changes. Counts take
    four bytes, and a column that holds the same for everybody at the start takes none, so that the three ledgers alive
    at once (the first, the last and the next) stay under 160 bytes per client.
    """

    clients: tuple[str, ...]
    position: Mapping[str, int]
    size: IndexArray
    network_s: FloatArray
    batch_s_sum: FloatArray
    batch_s_count: CountArray
    recent_trained: CountArray
    over_count: FloatArray
    over_sumsq: FloatArray
    loss_mean: FloatArray
    loss_first: NDArray[np.float32]
    participations: CountArray
    last_round: CountArray

    @classmethod
    def start(cls, clients: tuple[str, ...], size: IndexArray, network_s: FloatArray, batch_s: FloatArray) -> Ledger:
        """A ledger before the first round; `batch_s` holds a row of sampled batch latencies per client."""
        count = len(clients)
        size = np.asarray(size, dtype=np.int64)
        unheard = np.broadcast_to(math.nan, count)
        never = np.broadcast_to(np.int32(0), count)
        return cls(
            clients=clients,
            position=Positions(clients),
            size=size,
            network_s=np.asarray(network_s, dtype=np.float64),
            batch_s_sum=batch_s.sum(axis=1),
            batch_s_count=np.broadcast_to(np.int32(batch_s.shape[1]), count),
            recent_trained=np.broadcast_to(size.astype(np.int32)[:, None], (count, RECENT_COUNTS)),
            over_count=unheard,
            over_sumsq=unheard,
            loss_mean=unheard,
            loss_first=np.broadcast_to(np.float32(math.nan), count),
            participations=never,
            last_round=never,
        )

    @property
    def batch_s(self) -> FloatArray:
        """Mean batch latency of every client."""
        return self.batch_s_sum / self.batch_s_count

    @property
    def explored(self) -> NDArray[np.bool_]:
        """Who has succeeded at least once."""
        return self.participations > 0

    def rows(self, clients: tuple[str, ...]) -> IndexArray:
        """Row numbers of the given clients."""
        return np.fromiter((self.position[client] for client in clients), dtype=np.int64, count=len(clients))

    def record(self, result: RoundResult) -> Ledger:
        """The ledger after a round. A client without a report leaves no trace: the server heard nothing from it."""
        if not result.reports:
            return self
        rows = self.rows(tuple(report.client for report in result.reports))
        summaries = [report.summary for report in result.reports]

        def updated(column: NDArray[Any], values: Any) -> NDArray[Any]:
            fresh = column.copy()
            fresh[rows] = values
            return fresh

        losses, first = np.array([summary.loss_mean for summary in summaries]), self.loss_first[rows]
        recent = self.recent_trained[rows]
        recent[:, :-1] = recent[:, 1:]
        recent[:, -1] = [summary.trained for summary in summaries]
        return replace(
            self,
            batch_s_sum=updated(self.batch_s_sum, self.batch_s_sum[rows] + [s.batch_s for s in summaries]),
            batch_s_count=updated(self.batch_s_count, self.batch_s_count[rows] + 1),
            recent_trained=updated(self.recent_trained, recent),
            over_count=updated(self.over_count, [s.over_count for s in summaries]),
            over_sumsq=updated(self.over_sumsq, [s.over_sumsq for s in summaries]),
            loss_mean=updated(self.loss_mean, losses),
            loss_first=updated(self.loss_first, np.where(np.isnan(first), losses, first)),
            participations=updated(self.participations, self.participations[rows] + 1),
            last_round=updated(self.last_round, result.plan.order.round),
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """What the server knows before the first round; constant during a run.

    Args:
        ledger: One row per client, before any round.
        epochs: Local epochs of a round.
        batch_size: Samples per local batch.
        clients_per_round: Clients selected per round.
        seed: Seed of the run.
        sample_cap: Largest number of samples a client trains on per epoch. None: no limit.
        epoch_batches: Batches per epoch where a method fixes them. None: as many as the samples fill.
        learning_rate: Clients' learning rate.
        clip_norm: Largest norm of an update. None: not clipped.
        forward_pass_every_round: Whether each client starts each round with a forward pass over all its data.
        loss_noise: Standard deviation of the noise on loss statistics. None: unknown.
        stops_in_epoch: Whether a client may report a partial epoch when its deadline passes.
        most_weight: Upper bound on a client's weight, as a multiple of the round's median weight. None: no bound.
    """

    ledger: Ledger
    epochs: int
    batch_size: int
    clients_per_round: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None
    forward_pass_every_round: bool = False
    loss_noise: float | None = None
    stops_in_epoch: bool = False
    most_weight: float | None = None


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server remembers: saving it is the checkpoint. The seven fields before `suspensions` belong to the
    policies of those slots: each is a frozen dataclass of plain values and arrays, or None for a policy that remembers
    nothing. `suspensions` is who sits out (`server/suspensions.py`)."""

    round: int
    clock_s: float
    weights: Weights
    ledger: Ledger
    clients: Any = None
    threshold: Any = None
    pace: Any = None
    deadline: Any = None
    aggregate: Any = None
    model_average: Any = None
    late: Any = None
    suspensions: Any = None
