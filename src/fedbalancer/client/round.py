"""A client's round. All client-side decisions are made here.

The caller (the simulator, Flower or the test bed) provides the client's memory, an order and the speed of its device,
runs the training, and delivers the report.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedbalancer.client.policies import ClientPolicies, with_estimates
from fedbalancer.client.summary import without_counts
from fedbalancer.client.work import batches_by_forecast
from fedbalancer.core.contracts import Compressor
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import integer_seed, stream
from fedbalancer.core.types import (
    FORWARD_PASS_EPOCHS,
    Arrays,
    ClientReport,
    ClientWork,
    FloatArray,
    IndexArray,
    Layout,
    Order,
    Part,
    Summary,
    TrainResult,
    Weights,
    batches_per_epoch,
)

MODEL, PROGRESS = "interrupted.model", "interrupted.progress"
"""Names in a client's state of its model, and of the round of the model that it received and the batches left."""


@dataclass(frozen=True, eq=False)
class InterruptedTraining:
    """A training that the end of a round interrupted.

    Args:
        model: The weights after the last batch.
        round: The round in which the client received the model that it started from.
        left: Batches that it has not trained.
    """

    model: Weights
    round: int
    left: int

    @classmethod
    def read(cls, state: Arrays) -> InterruptedTraining | None:
        """Return the training that a client's state holds; None if there is none."""
        if MODEL not in state:
            return None
        received, left = state[PROGRESS].tolist()
        return cls(state[MODEL], int(received), int(left))

    def arrays(self) -> Arrays:
        """Return the training as named arrays."""
        return {MODEL: self.model, PROGRESS: np.array([self.round, self.left], dtype=np.float32)}


def without_training(state: Arrays) -> Arrays:
    """Return a client's state without an interrupted training."""
    return {name: array for name, array in state.items() if name not in (MODEL, PROGRESS)} if MODEL in state else state


UPLOADS = 16
"""Number of uploads to remember: enough to include rare long ones, few enough to follow a change of network."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Everything that a client keeps on its device between rounds.

    Args:
        losses: Last known loss of every sample. None before the first.
        batch_s_sum: Sum of all measured batch latencies.
        batch_s_count: Number of these latencies.
        residual: Part of earlier updates that compression has not sent. None if nothing is kept.
        uploads_s: Durations of the last uploads, for clients that predict the next one.
        state: Named arrays that the method's `LocalTraining` keeps on the client. Empty before the first report.
    """

    losses: FloatArray | None = None
    batch_s_sum: float = 0.0
    batch_s_count: int = 0
    residual: Weights | None = None
    uploads_s: tuple[float, ...] = ()
    state: Arrays = field(default_factory=dict)

    def batch_s(self, otherwise: float = float("nan")) -> float:
        """Return the mean batch latency, or `otherwise` before the first measurement."""
        return self.batch_s_sum / self.batch_s_count if self.batch_s_count else otherwise

    def note_batch_s(self, batch_s: float) -> ClientMemory:
        """Return the memory with one more batch latency."""
        return replace(self, batch_s_sum=self.batch_s_sum + batch_s, batch_s_count=self.batch_s_count + 1)

    def note_upload_s(self, upload_s: float) -> ClientMemory:
        """Return the memory with one more upload."""
        return replace(self, uploads_s=(*self.uploads_s, upload_s)[-UPLOADS:])

    def note_report(self, losses: FloatArray, residual: Weights | None, state: Arrays) -> ClientMemory:
        """Return the memory after a report: its loss list, its residual and the arrays of its method."""
        return replace(self, losses=losses, residual=residual, state=state)


def update_losses(losses: FloatArray | None, size: int, seen: IndexArray, fresh: FloatArray) -> FloatArray:
    """Return the loss list after a training.

    Args:
        losses: Loss list before the training, or None.
        size: Number of samples.
        seen: Trained samples, in ascending order.
        fresh: Loss of each trained sample when it was first seen.

    Returns:
        The old list with fresh losses; NaN for samples that were never seen. If all samples were seen, `fresh` itself.

    Example:
        >>> update_losses(np.array([1.0, 2.0, 3.0]), 3, np.array([1]), np.array([0.5]))
        array([1. , 0.5, 3. ])
    """
    if len(seen) == size:
        return fresh
    result = np.full(size, np.nan) if losses is None else losses.copy()
    result[seen] = fresh
    return result


@dataclass(frozen=True, eq=False)
class PreparedReport:
    """A report to send, and the client's memory once the server has accepted it.

    Args:
        sent: The update, or its encoded bytes.
        summary: What the client releases about its losses.
        memory: The next memory of the client.
        arrays: Named arrays for the aggregator.
    """

    sent: Weights | bytes
    summary: Summary
    memory: ClientMemory
    arrays: Arrays = field(default_factory=dict)


class ClientRound:
    """One client's part in one round.

    `memory` is what the client remembers, also if its report never counts.

    Args:
        policies: The client's policies.
        order: What the server asks for.
        client: Client id.
        size: Number of the client's samples.
        memory: The client's memory before the round.
        batch_s: Expected seconds per batch if the memory has none.
        part: The part of the model that the client trains. None: all of it.
        forward_epochs: Duration of a forward pass over all samples, in training epochs.
    """

    def __init__(
        self,
        policies: ClientPolicies,
        order: Order,
        client: str,
        size: int,
        memory: ClientMemory,
        batch_s: float = math.nan,
        part: Part | None = None,
        forward_epochs: float = FORWARD_PASS_EPOCHS,
    ) -> None:
        self.policies, self.order, self.client, self.size, self.memory = policies, order, client, size, memory
        self.part = part
        self.continued = self._continued()
        self._expected_batch_s, self._forward_epochs = batch_s, forward_epochs
        self._had_forward_pass = False
        self.problem = ""
        """Why the forward pass has no losses, if it diverged."""
        self._forward_losses: FloatArray | None = None
        known = None if policies.forward_pass == "every" else memory.losses
        self._indices = None if policies.forward_pass_every_round else self._select(known)

    @staticmethod
    def can_finish(soonest_s: float, deadline_s: float) -> bool:
        """Whether a report without training would be in time.

        Args:
            soonest_s: When that report would arrive.
            deadline_s: The deadline.
        """
        return soonest_s < deadline_s

    @property
    def needs_forward_pass(self) -> bool:
        """Whether the samples cannot be selected before a forward pass over all of them."""
        return self._indices is None

    def add_forward_pass(self, losses: FloatArray, keep: bool = True) -> None:
        """Select samples by the losses of a forward pass.

        Args:
            losses: Loss of every sample.
            keep: Whether these losses become the client's loss list.

        Raises:
            BadSetting: If the policy selects nothing.
        """
        self.memory = replace(self.memory, losses=losses) if keep else self.memory
        self._had_forward_pass, self._forward_losses = True, losses
        self._indices = self._select(losses)
        if self._indices is None:
            raise BadSetting(f"{type(self.policies.samples).__name__} selects no samples although all losses are known")

    def fail_forward_pass(self, problem: str) -> None:
        """Note a forward pass that diverged. Its time counts, and the client reports the problem without training.

        Args:
            problem: What is not finite.
        """
        self._had_forward_pass, self.problem = True, problem

    def limit_samples(self, count: int) -> None:
        """Keep the first selected samples only, for a replay of a round that selected this many.

        Args:
            count: Largest number of samples.
        """
        self._indices = self.indices[:count]

    @property
    def indices(self) -> IndexArray:
        """The selected samples, in ascending order; empty before a required forward pass."""
        return _NOTHING if self._indices is None else self._indices

    @property
    def forward_batches(self) -> float:
        """The cost of the forward pass, in training batches.

        It is free if it leads to training on all samples, because the first epoch computes the same losses (as in the
        authors' code), unless the method makes it in every round.
        """
        if not self._had_forward_pass or (self.policies.forward_pass == "first" and len(self.indices) == self.size):
            return 0.0
        return self._forward_epochs * batches_per_epoch(self.size, self.order.batch_size)

    @property
    def per_epoch(self) -> int:
        """Batches per local epoch."""
        return self.order.per_epoch(len(self.indices))

    @property
    def all_batches(self) -> int:
        """Batches of all local epochs, or the number that the order sets."""
        per_epoch, epochs = self._ordered_work
        return per_epoch * epochs

    @property
    def _ordered_work(self) -> tuple[int, int]:
        """Batches per epoch and epochs. Batches that the order sets, or that are left, are one epoch."""
        steps = self.order.steps.get(self.client) if self.continued is None else self.continued.left
        return (self.per_epoch, self.order.epochs) if steps is None else (steps, 1)

    def batches_in_time(self, elapsed_s: Callable[[int], float], deadline_s: float) -> int:
        """Return how many batches to train by the work policy.

        Args:
            elapsed_s: `elapsed_s(n)` predicts when a client that trains `n` batches finishes uploading.
            deadline_s: The deadline.
        """
        return self.policies.work.batches(elapsed_s, deadline_s, *self._ordered_work)

    def batches_if_late(self, elapsed_s: Callable[[int], float], deadline_s: float) -> int:
        """Return how many batches to train if the deadline cannot be met and a late report counts.

        This is what fits into the smallest multiple of the deadline that allows a report; all batches if there is none.
        """
        least = self._least
        soonest_s = elapsed_s(least)
        if not (math.isfinite(soonest_s) and 0 < deadline_s < math.inf):
            return self.all_batches
        fitting = self.batches_in_time(elapsed_s, math.ceil(soonest_s / deadline_s) * deadline_s)
        return fitting if fitting else least  # the division may round down

    @property
    def forecasts(self) -> bool:
        """Whether the client predicts the duration of its upload."""
        return self.policies.work.forecasts

    def batches_by_forecast(self, elapsed_s: Callable[[float], Callable[[int], float]], download_s: float) -> int:
        """Return how many batches a client that `forecasts` trains; at least the minimum for a report.

        Args:
            elapsed_s: `elapsed_s(upload_s)(n)` predicts when a client that trains `n` batches finishes an upload of
                `upload_s`.
            download_s: Duration of the download, used before the first upload.
        """
        seen_s = self.memory.uploads_s or (download_s,)
        deadline_s = self.order.deadline_s
        batches = batches_by_forecast(seen_s, lambda upload_s: self.batches_in_time(elapsed_s(upload_s), deadline_s))
        return batches if batches else self._least

    @property
    def _least(self) -> int:
        """The fewest batches that make a report."""
        return bisect_left(range(1, self.all_batches), 1, key=self.countable_batches) + 1

    def should_continue(self, done: int, elapsed_s: float, batch_s: float, budget_s: float) -> bool:
        """Whether a client on a real clock trains another batch.

        The work policy decides from predicted times. A client continues until its budget is spent if the policy would
        stop it in the middle of a unit or before the first one: a prediction from few batches must not lose the round.

        Args:
            done: Batches trained.
            elapsed_s: Seconds since the order arrived.
            batch_s: Seconds per batch.
            budget_s: Seconds after which the client must report.
        """
        if done >= self.all_batches or self.needs_forward_pass or not self.can_finish(elapsed_s, budget_s):
            return False
        wanted = self.batches_in_time(lambda batches: elapsed_s + max(batches - done, 0) * batch_s, budget_s)
        return wanted != done or done == 0

    def countable_batches(self, done: int) -> int:
        """Return how many of `done` batches count under the work policy."""
        return self.batches_in_time(lambda batches: 0.0 if batches <= done else math.inf, 0.0)

    def work(self, batches: int | None = None) -> ClientWork:
        """Return the training of the selected samples.

        Args:
            batches: Number of batches. Default: all epochs.
        """
        order = self.order
        return ClientWork(
            client=self.client,
            indices=self.indices,
            batches=self.all_batches if batches is None else batches,
            batch_size=order.batch_size,
            learning_rate=order.rate_of(self.client),
            mu=self.policies.mu,
            clip_norm=order.clip_norm,
            seed=integer_seed(order.seed, "train", order.round, self.client),
            epoch_batches=order.epoch_batches,
            training=order.training,
            train=None if self.policies.train.is_plain else self.policies.train,
            state=self.memory.state,
            arrays=order.arrays,
            part=self.part,
        )

    def _continued(self) -> InterruptedTraining | None:
        """Return the interrupted training that the client continues; None if it starts from the new model.

        A training that is too old is forgotten.
        """
        if not self.memory.state:
            return None
        rounds = self.policies.train.cache_rounds
        kept = None if rounds is None else InterruptedTraining.read(self.memory.state)
        if (
            kept is not None
            and not self.policies.forward_pass_every_round
            and self.order.round - kept.round <= (rounds or 0)
        ):
            return kept
        self.memory = self.memory if kept is None else replace(self.memory, state=without_training(self.memory.state))
        return None

    def forget_training(self) -> None:
        """Forget an interrupted training, because it diverged."""
        self.memory = replace(self.memory, state=without_training(self.memory.state))

    def note_batch_s(self, batch_s: float) -> None:
        """Remember how long a batch took in this round."""
        self.memory = self.memory.note_batch_s(batch_s)

    def note_upload_s(self, upload_s: float) -> None:
        """Remember how long an upload took, if the client predicts the next one."""
        self.memory = self.memory.note_upload_s(upload_s) if self.forecasts else self.memory

    def prepare_report(
        self, trained: TrainResult, batch_s: float, layout: Layout, noise: np.random.Generator
    ) -> PreparedReport:
        """Return the report of a training.

        Args:
            trained: Result of the training.
            batch_s: Seconds per batch.
            layout: Names and shapes of the model's tensors.
            noise: Source of the noise on the statistics. A real device must draw it where nobody else can.
        """
        losses = update_losses(self.memory.losses, self.size, trained.seen, trained.losses)
        summarized = self._of_received_model() if self.policies.forward_pass_every_round else losses
        policy = self.policies.summary
        summary = policy.summarize(summarized, trained.seen, batch_s, self.order, noise)
        if policy.releases_steps:
            summary = replace(summary, released=policy.by_steps(trained, noise))
        summary = without_counts(summary) if policy.is_private else summary
        sent, residual = self._encode(trained.update, layout)
        return PreparedReport(sent, summary, self.memory.note_report(losses, residual, trained.state), trained.arrays)

    @property
    def reported_samples(self) -> int:
        """Number of selected samples; with a private summary, all samples."""
        return self.size if self.policies.summary.is_private else len(self.indices)

    def reported_epochs(self, done: int) -> float:
        """Return the epochs to report after `done` batches; with a private summary, those of the order."""
        return float(self.order.epochs) if self.policies.summary.is_private else done / self.per_epoch

    def _of_received_model(self) -> FloatArray:
        """Return the losses of the received model, which a guarantee per sample requires."""
        if self._forward_losses is None or np.isnan(self._forward_losses).any():
            raise BadSetting(
                f"summary {type(self.policies.summary).__name__} with forward_pass = every requires the loss of every "
                "sample under the received model: pass these losses, or a function that computes them"
            )
        return self._forward_losses

    def _encode(self, update: Weights, layout: Layout) -> tuple[Weights | bytes, Weights | None]:
        if self.policies.compress.is_identity or not len(update):
            return update, None
        seed = compress_seed(self.order, self.client)
        return self.policies.compress.encode(update, layout, seed, self.memory.residual)

    def _select(self, losses: FloatArray | None) -> IndexArray | None:
        order = self.order
        rng = stream(order.seed, "samples", order.round, self.client)
        batch_s = self.memory.batch_s(self._expected_batch_s)
        return self.policies.samples.select(self.size, losses, batch_s, order, rng)


def decode_update(sent: Weights | bytes, compress: Compressor, layout: Layout, order: Order, client: str) -> Weights:
    """Return the update that the server uses, from what a client sent."""
    return compress.decode(sent, layout, compress_seed(order, client)) if isinstance(sent, bytes) else sent


def decode_summaries(
    reports: Sequence[ClientReport], policies: ClientPolicies, order: Order, size_of: Callable[[str], int]
) -> tuple[ClientReport, ...]:
    """Return the reports of a round with all statistics.

    The server's half of the summary computes statistics from what the clients released, and estimates the counts that a
    private summary withholds.

    Args:
        reports: Reports as they arrived.
        policies: The clients' policies.
        order: The order of the round.
        size_of: Returns the enrolled number of samples of a client.
    """
    if not reports:
        return ()
    summaries = policies.summary.read([report.summary for report in reports], order)
    if summaries is not None:
        read = [replace(each, read_by_server=True) for each in summaries]
        reports = tuple(replace(report, summary=each) for report, each in zip(reports, read, strict=True))
    return with_estimates(reports, size_of, policies) if policies.summary.is_private else tuple(reports)


def compress_seed(order: Order, client: str) -> int:
    """Return the seed of a compression, which client and server share."""
    return integer_seed(order.seed, "compress", order.round, client)


_NOTHING: IndexArray = np.zeros(0, dtype=np.int64)
