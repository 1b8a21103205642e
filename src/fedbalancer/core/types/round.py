"""A round: the order to a client, the plan, a client's training, and the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types.arrays import FloatArray, IndexArray, Weights

LateRule = Literal["lost", "joins", "counts"]
"""What becomes of a report that comes after its round has closed: it is lost; it joins the round in which it comes,
which closes as if it did not; or it counts for that round's quorum as any other."""


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


Count = TypeVar("Count", int, NDArray[Any])

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


STEP_BINS = 12
"""Kinds of local steps that are told apart: the first, the next two, the next four and so on; the last has the rest."""


def step_bin(steps: IndexArray) -> IndexArray:
    """Of which kind a step is that came after so many others.

    >>> step_bin(np.array([0, 1, 2, 3, 6, 7, 10**9])).tolist()
    [0, 1, 1, 2, 2, 3, 11]
    """
    return np.asarray(np.minimum(np.frexp(steps + 1.0)[1] - 1, STEP_BINS - 1), dtype=np.int64)


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
class TrainResult:
    """The result of a `ClientWork`: the update, and of the samples really seen, in ascending order, the loss when each
    was first seen, taken in its mini-batch just before that step, and how many steps came before it (None where whoever
    trained did not count)."""

    client: str
    update: Weights
    seen: IndexArray
    losses: FloatArray
    steps: IndexArray | None = None


UNDER_WAY = "under way"
"""Why a client is missing that is still at work when its round closes, and whose report will count when it comes."""


@dataclass(frozen=True)
class Summary:
    """What a client releases about its losses and its speed; never anything per sample.

    `loss_sum` and `loss_count` are over the samples that Algorithm 3 looks at (the selected ones, or all of them as
    an option); `over_count` and `over_sumsq` are over the samples at or above the loss threshold. `released` is what a
    summary of another form sends in their place, for its half on the server to read (`read_by_server`: it has).
    `trained` is 0 under a private summary, which withholds it, until the server has put its estimate there
    (`estimated`).
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
    estimated: bool = False

    @property
    def withholds_counts(self) -> bool:
        """Whether the client said neither how many samples it trained nor for how many epochs."""
        return self.estimated or self.trained == 0

    @property
    def loss_mean(self) -> float:
        return self.loss_sum / self.loss_count if self.loss_count else math.nan


@dataclass(frozen=True)
class Release:
    """What one report reveals about losses, in the terms of a privacy accountant.

    Args:
        mechanism: Name of the mechanism.
        noise_multiplier: Standard deviation of the Gaussian noise divided by its L2 sensitivity. 0: nothing is hidden;
            infinite: nothing is released.
        unit: What may differ between two data sets that must look alike. "client": all of a client's data. "sample":
            one sample, added or removed. "loss": one entry of the loss list; this is weaker, because a sample that was
            trained also changes the losses of the samples trained after it, which no bound covers.
    """

    mechanism: str
    noise_multiplier: float
    unit: Literal["sample", "loss", "client"] = "loss"


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
    how many rounds after the one that it was sent for the report came, 0 where it came in time. `size` is the client's
    current number of samples, None where it is the enrolled one."""

    client: str
    update: Weights
    weight: float
    epochs: float
    summary: Summary
    timings: Timings
    staleness: int = 0
    size: int | None = None


@dataclass(frozen=True)
class FailedClient:
    """A client that did not make it, and why: download, forward, train, upload (the phase in which the deadline
    passed), late (the quorum was full), unavailable, under way (its report will count in a later round), or invalid
    (what it sent was not believed); of a real client also silent (no reply when the round closed) or error. `problem`
    says of a rejected report which field has which value, and what the rule is; of an error, what it was."""

    client: str
    why: str
    timings: Timings = field(default_factory=Timings)
    samples: int = 0
    problem: str = ""


NOT_FOR_TIME = ("invalid", "error")
"""Why clients are missing that a longer deadline would not help."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """All that an engine may tell the server. Reports and missing are in order of client id; `seconds` is the
    duration from the send to the close, `window_s` what the selection of clients took before it, `down_bytes` and
    `up_bytes` what was sent to the clients and what they sent, late updates included. `under_way` are the clients,
    in order of id, whose reports of this round or earlier ones are still to come, and will count. `validated` is
    whether every report has been checked (`server.report_check`): an engine for real clients checks on arrival."""

    plan: RoundPlan
    reports: tuple[ClientReport, ...]
    missing: tuple[FailedClient, ...]
    seconds: float
    window_s: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    under_way: tuple[str, ...] = ()
    validated: bool = False

    @property
    def ran_out_of_time(self) -> bool:
        """Whether nobody reported, and more time might have helped at least one client of the cohort."""
        return not self.reports and any(missing.why not in NOT_FOR_TIME for missing in self.missing)

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
