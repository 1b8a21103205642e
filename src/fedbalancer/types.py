"""Every noun of the system. All values are frozen; seconds are floats; client ids are strings.

A round flows one way: the server plans (`RoundPlan`), an engine runs it (`RoundResult`), the server observes the
result into its next `ServerState`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.positions import Positions

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
CountArray = NDArray[np.int32]
Weights = NDArray[np.float32]
Count = TypeVar("Count", int, NDArray[Any])

RECENT_COUNTS = 5
"""How many trained-sample counts the ledger remembers per client."""

LateRule = Literal["lost", "joins", "counts"]
"""What becomes of a report that comes after its round has closed: it is lost; it joins the round in which it comes,
which closes as if it did not; or it counts for that round's quorum as any other."""

UNDER_WAY = "under way"
"""Why a client is missing that is still at work when its round closes, and whose report will count when it comes."""

FORWARD_PASS_EPOCHS = 0.5
"""A forward pass over all data takes half the time of one training epoch."""


def batches_per_epoch(samples: Count, batch_size: int, most: int | None = None) -> Count:
    """floor((m - 1) / B) + 1 batches of m samples, the short last one included; never fewer than one, and at most
    `most` where every epoch is cut short. Takes one count, or an array of counts that may be means.

    >>> batches_per_epoch(11, 10), batches_per_epoch(95, 10, most=1), batches_per_epoch(np.array([1, 10, 11]), 10)
    (2, 1, array([1, 1, 2]))
    """
    whole = (samples - 1) // batch_size + 1
    if isinstance(whole, int):
        return max(whole if most is None else min(whole, most), 1)
    return np.asarray(np.maximum(whole if most is None else np.minimum(whole, most), 1))


class Layout(tuple[tuple[str, tuple[int, ...]], ...]):
    """Names and shapes of the tensors that a flat `Weights` vector holds: a tuple of (name, shape) pairs, in order.

    >>> layout = Layout([("weight", (2, 2)), ("bias", (2,))])
    >>> layout.sizes, layout.parameters, layout.wire_bytes
    ((4, 2), 6, 24)
    >>> layout.split(np.arange(6, dtype=np.float32))["bias"].tolist()
    [4.0, 5.0]
    """

    __slots__ = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each tensor holds."""
        return tuple(math.prod(shape) for _, shape in self)

    @property
    def parameters(self) -> int:
        """How many numbers the vector holds."""
        return sum(self.sizes)

    @property
    def wire_bytes(self) -> int:
        """Bytes of the whole vector when it travels as it is: float32."""
        return 4 * self.parameters

    @property
    def spans(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        ends = accumulate(self.sizes)
        return {name: slice(end - size, end) for (name, _), size, end in zip(self, self.sizes, ends, strict=True)}

    def split(self, vector: Weights) -> dict[str, Weights]:
        """The named tensors in a vector, as views of it."""
        if len(vector) != self.parameters:
            raise ValueError(f"the layout has {self.parameters} numbers, but there are {len(vector)} weights")
        spans = self.spans
        return {name: vector[spans[name]].reshape(shape) for name, shape in self}

    def join(self, tensors: Mapping[str, NDArray[Any]]) -> Weights:
        """The vector of the named tensors, whatever their order: the inverse of `split`."""
        parts = [np.ravel(tensors[name]) for name, _ in self]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts], dtype=np.float32)


@dataclass(frozen=True)
class Order:
    """All that a client is told beside the weights. `epoch_batches` cuts every local epoch short after so many batches
    (Oort trains one); None trains as many as the selected samples fill. Gradients are clipped at the global norm
    `clip_norm`, if there is one."""

    round: int
    loss_threshold: float
    deadline_s: float
    epochs: int
    batch_size: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None


@dataclass(frozen=True)
class RoundPlan:
    """One round to run: it closes at the `quorum`-th report or at the deadline, whichever is first.
    `deadline_bounds_s` are dl and dh, between which the deadline was chosen, if it was: only for the record. `late`
    says what becomes of reports that come after the close."""

    order: Order
    cohort: tuple[str, ...]
    quorum: int
    deadline_bounds_s: tuple[float, float] | None = None
    late: LateRule = "lost"


@dataclass(frozen=True)
class Summary:
    """What a client releases about its losses and its speed; never anything per sample.

    `loss_sum` and `loss_count` are over the samples that Algorithm 3 looks at (the selected ones, or all of them as
    an option); `over_count` and `over_sumsq` are over the samples at or above the loss threshold. `released` is what a
    summary of another form sends in their place, for its half on the server to read (`read_by_server`: it has).
    """

    loss_low: float
    loss_high: float
    loss_sum: float
    loss_count: float
    over_count: float
    over_sumsq: float
    trained: int
    batch_s: float
    released: tuple[float, ...] = ()
    read_by_server: bool = False

    @property
    def loss_mean(self) -> float:
        return self.loss_sum / self.loss_count if self.loss_count else math.nan


@dataclass(frozen=True)
class Timings:
    """Where a client's seconds went. `paused_s` is time in which the device was not available."""

    download_s: float = 0.0
    forward_s: float = 0.0
    train_s: float = 0.0
    upload_s: float = 0.0
    paused_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.download_s + self.forward_s + self.train_s + self.upload_s + self.paused_s


@dataclass(frozen=True, eq=False)
class ClientReport:
    """A client that made it: its update (new weights minus the weights it was sent) and its metadata. `staleness` is
    how many rounds after the one that it was sent for the report came, 0 where it came in time."""

    client: str
    update: Weights
    weight: float
    epochs: float
    summary: Summary
    timings: Timings
    staleness: int = 0


@dataclass(frozen=True)
class Missing:
    """A client that did not make it, and why: download, forward, train, upload (the phase in which the deadline
    passed), late (the quorum was full), unavailable, under way (its report will count in a later round), or invalid
    (what it sent was not believed); of a real client also silent (no reply when the round closed) or error. `problem`
    says of a report that was not believed which field has which value, and what the rule is."""

    client: str
    why: str
    timings: Timings = field(default_factory=Timings)
    samples: int = 0
    problem: str = ""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """All that an engine may tell the server. Reports and missing are in order of client id; `seconds` is the
    duration from the send to the close, `window_s` what the selection of clients took before it, `down_bytes` and
    `up_bytes` what was sent to the clients and what they sent, late updates included. `under_way` are the clients,
    in order of id, whose reports of this round or earlier ones are still to come, and will count."""

    plan: RoundPlan
    reports: tuple[ClientReport, ...]
    missing: tuple[Missing, ...]
    seconds: float
    window_s: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    under_way: tuple[str, ...] = ()

    @property
    def in_time(self) -> RoundResult:
        """The round without the reports that were sent for an earlier one."""
        if all(report.staleness == 0 for report in self.reports):
            return self
        return replace(self, reports=tuple(report for report in self.reports if report.staleness == 0))


@dataclass(frozen=True)
class Evaluation:
    """The global model on the test data."""

    accuracy: float
    loss: float
    samples: int


@dataclass(frozen=True, eq=False)
class Ledger:
    """A row per client, stored as columns so that a million clients stay cheap.

    `network_s` is the expected download plus upload (size over mean speed), `batch_s_*` all batch latencies that the
    server has seen (the ten before training included), `recent_trained` the last five counts of trained samples
    (at first the full size), `over_*` and `loss_mean` the client's last released summary (NaN before the first),
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
            loss_mean=updated(self.loss_mean, [s.loss_mean for s in summaries]),
            participations=updated(self.participations, self.participations[rows] + 1),
            last_round=updated(self.last_round, result.plan.order.round),
        )


@dataclass(frozen=True, eq=False)
class Setup:
    """What the server knows before the first round, and what does not change during a run. With `looks_every_round`
    every round of a client begins with a forward pass over all its data. `loss_noise` is the deviation of the noise on
    statistics of losses (None: not known), `clock_slack_s` by how much a client's clock may be off."""

    ledger: Ledger
    epochs: int
    batch_size: int
    clients_per_round: int
    seed: int
    sample_cap: int | None = None
    epoch_batches: int | None = None
    learning_rate: float = 0.01
    clip_norm: float | None = None
    looks_every_round: bool = False
    loss_noise: float | None = None
    clock_slack_s: float = 0.0


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server remembers: saving it is the checkpoint. The seven fields before `bench` belong to the
    policies of those slots: each is a frozen dataclass of plain values and arrays, or None for a policy that remembers
    nothing. `bench` is who sits out (`server/bench.py`)."""

    round: int
    clock_s: float
    weights: Weights
    ledger: Ledger
    clients: Any = None
    threshold: Any = None
    pace: Any = None
    deadline: Any = None
    aggregate: Any = None
    deliver: Any = None
    late: Any = None
    bench: Any = None


@dataclass(frozen=True, eq=False)
class ClientWork:
    """One local training, as pure work: `batches` steps over `indices`, reshuffled every epoch, of which every epoch
    trains the first `epoch_batches` batches (None: all)."""

    client: str
    indices: IndexArray
    batches: int
    batch_size: int
    learning_rate: float
    mu: float
    clip_norm: float | None
    seed: int
    epoch_batches: int | None = None

    @property
    def per_epoch(self) -> int:
        """Batches of one epoch."""
        return batches_per_epoch(len(self.indices), self.batch_size, self.epoch_batches)


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a `ClientWork`: the update, and of the samples really seen, in ascending order, the loss when each
    was first seen, taken in its mini-batch just before that step."""

    client: str
    update: Weights
    seen: IndexArray
    losses: FloatArray
