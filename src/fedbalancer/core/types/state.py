"""The server's ledger of clients, its setup, and its state between rounds."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.schedules import RateFunction, Schedule, rate_of_round
from fedbalancer.core.types.layout import CountArray, FloatArray, IndexArray, Shapes, Weights
from fedbalancer.core.types.round import RoundResult
from fedbalancer.core.types.training import FORWARD_PASS_EPOCHS, PLAIN, Count, TrainOptions, batches_per_epoch


class Positions(Mapping[str, int]):
    """A read-only mapping from name to position, found by bisection.

    It equals `{name: row for row, name in enumerate(names)}`. A dictionary is faster, but takes 70 bytes more per name,
    which is too much for a million clients.

    Args:
        names: Distinct names.

    Example:
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
        """Return the positions of names.

        Args:
            names: The names to look up.
        """
        return np.fromiter(map(self.__getitem__, names), dtype=np.int64)


RECENT_COUNTS = 5
"""Number of trained-sample counts that the ledger remembers per client."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """The server's knowledge about its clients: one row per client, stored as columns.

    A ledger is a value: `record` returns the next one. Counts take four bytes, and a column with one value for all
    clients takes none, so the three ledgers alive at once (first, last and next) take less than 160 bytes per client.

    Args:
        clients: Client ids.
        position: Row of each client.
        size: Number of samples.
        network_s: Expected seconds of download plus upload, at mean speed.
        batch_s_sum: Sum of all known batch latencies, including those sampled before training.
        batch_s_count: Number of these latencies.
        recent_trained: Last five numbers of trained samples; at first the full size.
        over_count: `Summary.over_count` of the last report; NaN before the first.
        over_sumsq: `Summary.over_sumsq` of the last report.
        loss_mean: Mean loss of the last report.
        participations: Number of successful rounds.
        last_round: Last successful round; 0 for none.
        tags: Tags of the clients that have any. They are not saved: the clients report them again.
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
    participations: CountArray
    last_round: CountArray
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def start(cls, clients: tuple[str, ...], size: IndexArray, network_s: FloatArray, batch_s: FloatArray) -> Ledger:
        """Return the ledger before the first round.

        Args:
            clients: Client ids.
            size: Number of samples of each client.
            network_s: Expected seconds of download plus upload.
            batch_s: Sampled batch latencies, one row per client.
        """
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
            participations=never,
            last_round=never,
        )

    @property
    def batch_s(self) -> FloatArray:
        """Mean batch latency of every client."""
        return self.batch_s_sum / self.batch_s_count

    @property
    def explored(self) -> NDArray[np.bool_]:
        """Which clients have succeeded at least once."""
        return self.participations > 0

    def rows(self, clients: tuple[str, ...]) -> IndexArray:
        """Return the row numbers of clients.

        Args:
            clients: Ids of the clients.
        """
        return np.fromiter((self.position[client] for client in clients), dtype=np.int64, count=len(clients))

    def record(self, result: RoundResult) -> Ledger:
        """Return the ledger after a round. Clients without a report do not change.

        Args:
            result: What happened in the round.
        """
        if not result.reports:
            return self
        rows = self.rows(tuple(report.client for report in result.reports))
        summaries = [report.summary for report in result.reports]

        def updated(column: NDArray[Any], values: Any) -> NDArray[Any]:
            fresh = column.copy()
            fresh[rows] = values
            return fresh

        losses = np.array([summary.loss_mean for summary in summaries])
        batch_s = [report.summary.batch_s / report.batch_share for report in result.reports]
        recent = self.recent_trained[rows]
        recent[:, :-1] = recent[:, 1:]
        recent[:, -1] = [summary.trained for summary in summaries]
        return replace(
            self,
            batch_s_sum=updated(self.batch_s_sum, self.batch_s_sum[rows] + batch_s),
            batch_s_count=updated(self.batch_s_count, self.batch_s_count[rows] + 1),
            recent_trained=updated(self.recent_trained, recent),
            over_count=updated(self.over_count, [s.over_count for s in summaries]),
            over_sumsq=updated(self.over_sumsq, [s.over_sumsq for s in summaries]),
            loss_mean=updated(self.loss_mean, losses),
            participations=updated(self.participations, self.participations[rows] + 1),
            last_round=updated(self.last_round, result.plan.order.round),
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """Constants of a run that the server knows before the first round.

    Args:
        ledger: One row per client, before any round.
        epochs: Local epochs of a round.
        batch_size: Samples per local batch.
        clients_per_round: Clients selected per round (K).
        seed: Seed of the run.
        sample_cap: Most samples that a client trains on. None: no limit.
        epoch_batches: Batches after which a local epoch ends. None: all batches.
        learning_rate: Clients' learning rate, or a function of the round.
        clip_norm: Largest norm of a step's gradient. None: no clipping.
        training: How clients turn batches into steps.
        schedule: Multiplies the learning rate. None: it stays.
        forward_pass_every_round: Whether each client starts each round with a forward pass over all its data.
        forward_epochs: Duration of a forward pass over all data, in training epochs.
        loss_noise: Standard deviation of the noise on loss statistics. None: unknown.
        stops_in_epoch: Whether a client may report a partial epoch when its deadline passes.
        most_weight: Upper bound on a client's weight, as a multiple of the round's median weight. None: no bound.
        report_arrays: Names and shapes of the arrays that every report must have.
        repeats: How much more than all epochs a client may train, as a multiple of them.
    """

    ledger: Ledger
    epochs: int
    batch_size: int
    clients_per_round: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float | RateFunction = 0.01
    clip_norm: float | None = None
    training: TrainOptions = PLAIN
    schedule: Schedule | None = None
    forward_pass_every_round: bool = False
    forward_epochs: float = FORWARD_PASS_EPOCHS
    loss_noise: float | None = None
    stops_in_epoch: bool = False
    most_weight: float | None = None
    report_arrays: Shapes = field(default_factory=dict)
    repeats: float = 0.0

    def rate_in(self, round_number: int) -> float:
        """Return the clients' learning rate in a round.

        Args:
            round_number: Number of the round, from 1.

        Raises:
            BadSetting: If a function of the user does not return a finite number above 0.
        """
        if self.schedule is None and isinstance(self.learning_rate, float):
            return self.learning_rate
        return rate_of_round(self.learning_rate, self.schedule, round_number)

    def per_epoch(self, samples: Count) -> Count:
        """Return the batches of a local epoch.

        Args:
            samples: Number of samples, or an array of numbers, which may be means.
        """
        return batches_per_epoch(samples, self.batch_size, self.epoch_batches, self.training.drop_last)


@dataclass(frozen=True, eq=False)
class ServerState:
    """Everything that the server remembers between rounds. Saving it is the checkpoint.

    The fields `clients` to `late` belong to the policies of these slots. Each is a frozen dataclass of plain values and
    arrays, or None for a policy without state.

    Args:
        round: Number of completed rounds.
        clock_s: Seconds since the start of the run.
        weights: Global weights.
        ledger: What the server knows about its clients.
        clients: State of the client selector.
        threshold: State of the threshold policy.
        pace: State of the pace policy.
        deadline: State of the deadline policy.
        aggregate: State of the aggregator.
        model_average: State of the model average.
        late: State of the late policy.
        suspensions: Suspended clients (`server.report_check`).
    """

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
