"""The values of a round: the order to a client, the plan, the reports, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types.layout import Arrays, Weights
from fedbalancer.core.types.training import PLAIN, TrainOptions, batches_per_epoch


def total(values: Iterable[float]) -> float:
    """Add values one by one.

    From Python 3.12 on, the built-in `sum` compensates for rounding. With it, the last digits of a run would depend on
    the Python version.

    Args:
        values: Numbers to add.

    Example:
        >>> total([1e16, 1.0, -1e16])
        0.0
    """
    added = 0.0
    for value in values:
        added += value
    return added


LateRule = Literal["lost", "joins", "counts"]
"""What happens to a report that arrives after its round has closed: it is lost; it joins the round in which it arrives
without counting for its quorum; or it also counts for that quorum."""


@dataclass(frozen=True)
class Order:
    """Everything that a client receives besides the weights.

    Args:
        round: Number of the round, from 1.
        loss_threshold: Loss threshold of sample selection.
        deadline_s: Deadline in seconds.
        epochs: Local epochs.
        batch_size: Samples per batch.
        seed: Seed of the run.
        sample_cap: Most samples that a client trains on. None: no limit.
        epoch_batches: Batches after which a local epoch ends (Oort trains one). None: all batches.
        learning_rate: Learning rate of this round.
        clip_norm: Largest norm of a step's gradient. None: no clipping.
        training: How a client turns batches into steps.
        arrays: Named arrays from the aggregator to every client, for methods that send more than the model.
        repeats: How much more than all epochs a client may train, as a multiple of them.
        shares: Share of the model that each client trains, by its id, if the deadline policy sets it.
        rates: Factor of the learning rate of each client, by its id, if the aggregator sets it.
        steps: Batches that each client trains instead of its epochs, by its id, if the late policy sets them.
        most_steps: Most of these batches. None: the late policy does not set them.
    """

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
    training: TrainOptions = PLAIN
    arrays: Arrays = field(default_factory=dict, compare=False)
    repeats: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict, compare=False)
    rates: Mapping[str, float] = field(default_factory=dict, compare=False)
    steps: Mapping[str, int] = field(default_factory=dict, compare=False)
    most_steps: int | None = None

    def rate_of(self, client: str) -> float:
        """Return the learning rate of a client in this round.

        Args:
            client: The client's id.
        """
        return self.learning_rate * self.rates.get(client, 1.0)

    def per_epoch(self, samples: int) -> int:
        """Return the batches of a local epoch.

        Args:
            samples: Number of samples that a client trains on.
        """
        return batches_per_epoch(samples, self.batch_size, self.epoch_batches, self.training.drop_last)


@dataclass(frozen=True)
class RoundPlan:
    """A round to run. It closes at the `quorum`-th report or at the deadline, whichever is first.

    Args:
        order: The order to every client.
        cohort: Ids of the selected clients, sorted.
        quorum: Number of reports that closes the round.
        deadline_bounds_s: dl and dh of Algorithm 4, for the record. None if the method does not use them.
        late: What happens to reports that arrive after the round closed.
        concurrency: Number of clients at work at any time. A place that becomes free during the round is filled at
            once from `reserve`, with the same order. 0: free places are filled with the next round.
        reserve: Ids of the clients that fill free places, first choice first. In the plan of a `RoundResult`, those
            that started are part of the cohort.
        timer_s: Seconds after which a round in which late reports count closes even without a report.
    """

    order: Order
    cohort: tuple[str, ...]
    quorum: int
    deadline_bounds_s: tuple[float, float] | None = None
    late: LateRule = "lost"
    concurrency: int = 0
    reserve: tuple[str, ...] = ()
    timer_s: float = math.inf

    def start_from_reserve(self, clients: Collection[str]) -> RoundPlan:
        """Return the plan after these clients of the reserve have started.

        Args:
            clients: Ids of the clients.
        """
        reserve = tuple(client for client in self.reserve if client not in clients)
        return replace(self, cohort=tuple(sorted((*self.cohort, *clients))), reserve=reserve)


UNDER_WAY = "under way"
"""`FailedClient.why` of a client that is still working when its round closes and whose report will count later."""


@dataclass(frozen=True)
class Summary:
    """Statistics of losses and speed that a client releases. It never contains values of single samples.

    Args:
        loss_low: LLow, the lowest loss.
        loss_high: LHigh, the 80th percentile of the losses.
        loss_sum: Sum of the losses that Algorithm 3 uses: of the selected samples or, as an option, of all.
        loss_count: Number of these losses.
        over_count: Number of samples at or above the loss threshold.
        over_sumsq: Sum of their squared losses.
        trained: Number of samples trained. 0 if a private summary withholds it.
        batch_s: Seconds per batch.
        released: Numbers that a summary of another form sends instead; the server computes the statistics from them.
        read_by_server: Whether the server computed the statistics from `released`.
        estimated: Whether `trained` is the server's estimate.
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
        """Whether the client reported neither its number of trained samples nor its epochs."""
        return self.estimated or self.trained == 0

    @property
    def loss_mean(self) -> float:
        """Mean loss; NaN without losses."""
        return self.loss_sum / self.loss_count if self.loss_count else math.nan


@dataclass(frozen=True)
class Release:
    """One release of statistics of losses, as a privacy accountant needs it.

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
    """Seconds that a client spent in each phase.

    Args:
        download_s: Download of the model.
        forward_s: Forward pass over all samples.
        train_s: Training.
        upload_s: Upload of the update.
        paused_s: Time in which the device was not available.
    """

    download_s: float = 0.0
    forward_s: float = 0.0
    train_s: float = 0.0
    upload_s: float = 0.0
    paused_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of all phases."""
        return self.download_s + self.forward_s + self.train_s + self.upload_s + self.paused_s


@dataclass(frozen=True, eq=False)
class ClientReport:
    """The report of a client that finished.

    Args:
        client: Client id.
        update: New weights minus the weights that the client received.
        weight: Weight in the aggregation.
        epochs: Local epochs trained.
        summary: What the client releases about its losses and speed.
        timings: Seconds in each phase.
        staleness: Rounds between the order and the report; 0 for a report in time.
        size: The client's current number of samples. None: the enrolled number.
        arrays: Named arrays for the aggregator, as the method's `LocalTraining` declares them.
        part: Which parameters the client trained. None: all.
        batch_share: Seconds of a batch as a share of the whole model's, if the part differs from round to round.
        problem: Why the report has no update, if the client's training diverged. Such a report is invalid.
    """

    client: str
    update: Weights
    weight: float
    epochs: float
    summary: Summary
    timings: Timings
    staleness: int = 0
    size: int | None = None
    arrays: Arrays = field(default_factory=dict)
    part: NDArray[np.bool_] | None = None
    batch_share: float = 1.0
    problem: str = ""


@dataclass(frozen=True)
class FailedClient:
    """A selected client without a report in this round.

    Args:
        client: Client id.
        why: The phase in which the deadline passed ("download", "forward", "train", "upload"), "late" (the quorum was
            complete), "unavailable", "under way" (the report counts in a later round) or "invalid" (the report was
            rejected). For real clients also "silent" (no reply) or "error".
        timings: Seconds in each phase.
        samples: Number of selected samples.
        problem: Why the report was rejected (field, value and rule), or the client's error.
    """

    client: str
    why: str
    timings: Timings = field(default_factory=Timings)
    samples: int = 0
    problem: str = ""


FOLDED: Weights = np.empty(0, dtype=np.float32)
"""`ClientReport.update` of a report whose update was added to a sum and is no longer kept."""


class UpdateFold(Protocol):
    """Adds the updates of a round one by one, so that they need not be in memory at the same time."""

    def add(self, report: ClientReport) -> None:
        """Add a report. Reports come in the order of client ids.

        Args:
            report: The report.
        """

    def finish(self) -> tuple[Weights, Any]:
        """Return the new weights and the aggregator's next state."""


@dataclass(frozen=True, eq=False)
class FoldedUpdates:
    """The updates of a round that were added to a sum and are no longer part of their reports.

    Args:
        fold: The fold, which has all of these updates.
        weights: The weight of each of these reports, by client id.
        again: Computes the updates of some clients again and yields their reports, in the order of client ids.
    """

    fold: UpdateFold
    weights: Mapping[str, float]
    again: Callable[[Collection[str]], Iterator[ClientReport]]


NOT_FOR_TIME = ("invalid", "error")
"""`FailedClient.why` of failures that a longer deadline would not prevent."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """Everything that an engine reports to the server.

    Args:
        plan: The plan of the round.
        reports: Reports, sorted by client id.
        missing: Clients without a report, sorted by client id.
        seconds: Duration from sending the orders to closing the round.
        window_s: Seconds that the selection of clients took before.
        down_bytes: Bytes sent to clients.
        up_bytes: Bytes sent by clients, including late updates.
        under_way: Sorted ids of clients whose reports are expected later and will count.
        validated: Whether every report has been checked (`server.report_check`). An engine for real clients checks
            reports on arrival.
        folded: The sum of the updates, if the reports do not have their own (`FOLDED`).
    """

    plan: RoundPlan
    reports: tuple[ClientReport, ...]
    missing: tuple[FailedClient, ...]
    seconds: float
    window_s: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    under_way: tuple[str, ...] = ()
    validated: bool = False
    folded: FoldedUpdates | None = None

    @property
    def ran_out_of_time(self) -> bool:
        """Whether nobody reported, and more time could have helped at least one client.

        A round that its timer may close ends as planned.
        """
        if math.isfinite(self.plan.timer_s):
            return False
        return not self.reports and any(missing.why not in NOT_FOR_TIME for missing in self.missing)

    @property
    def in_time(self) -> RoundResult:
        """The result without reports that answer the order of an earlier round."""
        if all(report.staleness == 0 for report in self.reports):
            return self
        return replace(self, reports=tuple(report for report in self.reports if report.staleness == 0))


@dataclass(frozen=True)
class Evaluation:
    """Quality of a model on test data.

    Args:
        accuracy: Share of correct answers; NaN if it was not computed.
        loss: Mean loss.
        samples: Number of test samples.
        metrics: Further metrics by name.
    """

    accuracy: float
    loss: float
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return a metric by its name; NaN if it was not computed.

        Args:
            name: Name of the metric.

        Example:
            >>> evaluation = Evaluation(0.5, 1.2, 10, {"f1": 0.4})
            >>> evaluation.value("f1"), evaluation.value("loss"), evaluation.value("mae")
            (0.4, 1.2, nan)
        """
        return {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}.get(name, math.nan)
