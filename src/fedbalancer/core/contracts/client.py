"""Base classes of the client's slots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.contracts.policy import Policy
from fedbalancer.core.types import (
    FloatArray,
    IndexArray,
    Layout,
    Order,
    Release,
    Summary,
    TrainResult,
    Weights,
)


class SampleSelector(Policy):
    """Selects the samples that a client trains on."""

    slot = "samples"

    @property
    def by_threshold(self) -> bool:
        """Whether the number of selected samples follows from the share of losses over the threshold."""
        return False

    @property
    def needs_labels(self) -> bool:
        """Whether the policy selects by labels: `of_labels` is called on every client before `select`."""
        return False

    def of_labels(self, labels: ArrayLike) -> SampleSelector:
        """Return the policy for a client whose samples have these labels.

        Args:
            labels: The client's labels, one per sample.
        """
        return self

    def cap(self, sizes: IndexArray) -> int | None:
        """Return the most samples that a client trains, or None for no limit.

        Args:
            sizes: The number of samples of every client. The server asks once, before the first round.
        """
        return None

    @abstractmethod
    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        """Return the selected samples.

        Args:
            size: The client's number of samples.
            losses: The last known loss of every sample (NaN: unknown), or None before the first.
            batch_s: Expected seconds per batch.
            order: What the server asks for in this round.
            rng: The only source of random numbers.

        Returns:
            Sorted sample numbers, at least one; None if the losses are needed and `losses` is None.
        """


class WorkPolicy(Policy):
    """Decides how much a client trains before the deadline."""

    slot = "work"

    @property
    def stops_in_epoch(self) -> bool:
        """Whether a client may stop in the middle of an epoch."""
        return False

    @property
    def repeats(self) -> float:
        """Maximum additional epochs of a client, as a multiple of the configured epochs."""
        return 0.0

    @property
    def forecasts(self) -> bool:
        """Whether the client does not know how long its upload takes, and predicts it from earlier ones."""
        return False

    @abstractmethod
    def batches(self, elapsed_s: Callable[[int], float], deadline_s: float, per_epoch: int, epochs: int) -> int:
        """Return how many of the `per_epoch * epochs` batches to train; 0 if none finish in time.

        Args:
            elapsed_s: `elapsed_s(b)` predicts when a client that trains `b` batches finishes its upload; it never
                decreases.
            deadline_s: The deadline in seconds.
            per_epoch: Batches per epoch.
            epochs: Epochs that the server asks for.
        """


class Summarizer(Policy):
    """Decides what a client releases about its losses. Noise is added here, on the client."""

    slot = "summary"

    @property
    def releases_losses(self) -> bool:
        """Whether the summary contains statistics of losses."""
        return True

    @property
    def releases_fraction(self) -> bool:
        """Whether it releases the share of losses over the threshold."""
        return False

    @property
    def releases_steps(self) -> bool:
        """Whether it releases losses by local steps: `by_steps` then fills `Summary.released`."""
        return False

    @property
    def releases_numbers(self) -> bool:
        """Whether it uses `Summary.released`, which `fault` checks."""
        return False

    @property
    def of_received_model(self) -> bool:
        """Whether the summary describes the received model if there is a forward pass in every round."""
        return False

    @property
    def sums_all_losses(self) -> bool:
        """Whether the statistics cover all of a client's samples."""
        return False

    @property
    def utility_samples(self) -> Literal["selected", "all"]:
        """The samples that the loss sum covers."""
        return "all"

    @property
    def needs_secure_aggregation(self) -> bool:
        """Whether the privacy guarantee requires that the server only sees the sum over clients."""
        return False

    @property
    def loss_noise(self) -> float | None:
        """Standard deviation of the noise on every statistic; None if unknown."""
        return None

    @property
    def is_private(self) -> bool:
        """Whether the summary claims an epsilon. Nothing else in a report may then depend on the client's losses."""
        return self.release(True).noise_multiplier > 0

    def release(self, fresh: bool) -> Release:
        """Describe the release to a privacy accountant. Default: no noise.

        Args:
            fresh: Whether the losses come from a forward pass over the received model.
        """
        return Release(type(self).__name__, 0.0)

    @abstractmethod
    def summarize(
        self, losses: FloatArray, seen: IndexArray, batch_s: float, order: Order, rng: np.random.Generator
    ) -> Summary:
        """Return what the client releases after a training.

        Args:
            losses: The loss of every sample (NaN: unknown).
            seen: The samples trained in this round.
            batch_s: Seconds per batch.
            order: What the server asked for in this round.
            rng: The only source of noise.
        """

    def by_steps(self, trained: TrainResult, rng: np.random.Generator) -> tuple[float, ...]:
        """Return `Summary.released` for a training. Only called if `releases_steps`.

        Args:
            trained: The result of the training.
            rng: The only source of noise.
        """
        return ()

    def read(self, summaries: Sequence[Summary], order: Order) -> Sequence[Summary] | None:
        """Compute statistics on the server from what the clients of a round released; None if there is no need.

        Args:
            summaries: The summaries of the round's clients.
            order: What the server asked for in this round.
        """
        return None

    def over_share(self, summaries: Sequence[Summary]) -> float:
        """Return the share of all samples of a round over the threshold; 1 if unknown.

        Args:
            summaries: The summaries of the round's clients.
        """
        over, counted = np.sum([(each.over_count, each.loss_count) for each in summaries], axis=0)
        return float(over / counted) if counted > 0 else 1.0

    def fault(self, released: Sequence[float], size: int) -> str | None:
        """Return what is wrong with the `Summary.released` of a client with `size` samples, or None.

        Args:
            released: The released numbers.
            size: The client's number of samples.
        """
        return None

    def statistics_fault(self, summary: Summary, size: int) -> str | None:
        """Return what is wrong with the statistics of a client with `size` samples, or None.

        Args:
            summary: The client's summary.
            size: The client's number of samples.
        """
        return None


class Compressor(Policy):
    """Encodes updates for the network.

    The simulator computes the duration of a round before training, so the size may depend only on the layout. Client
    and server know `seed` and draw the same random numbers from it.
    """

    slot = "compress"

    @property
    def is_identity(self) -> bool:
        """Whether updates travel unchanged, so that there is nothing to encode."""
        return False

    @abstractmethod
    def encoded_bytes(self, layout: Layout) -> int:
        """Return the exact length of what `encode` returns.

        Args:
            layout: Names and shapes of the model's parameters.
        """

    @abstractmethod
    def encode(
        self, update: Weights, layout: Layout, seed: int, residual: Weights | None
    ) -> tuple[bytes, Weights | None]:
        """Return the bytes to send and the next residual.

        Args:
            update: The client's update.
            layout: Names and shapes of the tensors.
            seed: Seed that both sides know.
            residual: The part of earlier updates that was not sent (error feedback); None at first.
        """

    @abstractmethod
    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        """Return the update that the server uses.

        Args:
            payload: The encoded update.
            layout: Names and shapes of the model's parameters.
            seed: Seed of the client's random choices in this round.
        """
