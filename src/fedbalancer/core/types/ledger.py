"""What the server knows of its clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.name_index import Positions
from fedbalancer.core.types.arrays import CountArray, FloatArray, IndexArray
from fedbalancer.core.types.result import RoundResult

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
