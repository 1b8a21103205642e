"""Base classes of the client's slots, with those that change local training: `train` (how) and `part` (what)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.core.contracts.policy import Policy
from fedbalancer.core.types import (
    Arrays,
    ClientWork,
    FloatArray,
    IndexArray,
    Layout,
    Order,
    Outside,
    Release,
    Shapes,
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


@dataclass(eq=False)
class LocalRun:
    """One local training of one client, as the policy in slot `train` sees it.

    All vectors have one float32 value per parameter, in the order of `layout`. A policy may replace the values of
    `state` and `sent`; it must not change anything else.

    Args:
        work: The client's work: its id, batch size, learning rate and so on.
        layout: Names and shapes of the model's tensors.
        start: The weights that the training starts from.
        state: The arrays that the client keeps, as `client_state` declares them. All zero before the first report.
        arrays: The arrays from the server, as `down_arrays` declares them.
        is_first: Whether the client has no state of an earlier round.
        steps: Number of steps done.
        sent: The arrays for the server. Fill it in `finish`, as `up_arrays` declares them.
        gradient_at: `gradient_at(weights)` returns the gradient of the current batch's mean loss at other weights.
            Available in `gradient`.
        module: The `torch.nn.Module` that is trained. Its parameters must not be changed.
    """

    work: ClientWork
    layout: Layout
    start: Weights
    state: dict[str, Weights] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    is_first: bool = True
    steps: int = 0
    sent: dict[str, Weights] = field(default_factory=dict)
    gradient_at: Callable[[Weights], Weights] | None = None
    module: Any = None

    def copy(self) -> LocalRun:
        """Return a copy with its own state."""
        return replace(self, state={name: array.copy() for name, array in self.state.items()}, sent={})


class LocalTraining(Policy):
    """Decides how a client trains: the direction of every step, and what it keeps and sends besides the update.

    A step is w <- w - learning_rate * clip(gradient), or the step of the task's optimizer. The policy changes the
    gradient before it is clipped. It runs on the client, in any process, so it keeps nothing itself: what a client
    remembers is in `LocalRun.state`, which is saved with its memory. What the server remembers is the state of the
    aggregator, which sends it to all clients by `Aggregator.order_arrays`.
    """

    slot = "train"

    @property
    def is_plain(self) -> bool:
        """Whether training is the task's own, so that the fast kernels may run it."""
        return False

    @property
    def passes(self) -> float:
        """Gradients per batch, by which the simulated seconds of a batch are multiplied."""
        return 1.0

    @property
    def tuning_epochs(self) -> int:
        """Epochs that a client trains on its own data before the final model is evaluated on it. 0: none."""
        return 0

    @property
    def cache_rounds(self) -> int | None:
        """Rounds for which a client keeps a training that was interrupted, and continues it without a new model.

        None: it starts over from the new model.
        """
        return None

    def client_state(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client keeps between its rounds.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def down_arrays(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client needs from the server.

        An array of shape `(layout.parameters,)` is a vector in the order of the model.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def up_arrays(self, layout: Layout) -> Shapes:
        """Return names and shapes of the arrays that a client sends with its report.

        Args:
            layout: Names and shapes of the model's tensors.
        """
        return {}

    def objective(self, loss: Any, outputs: Any, labels: Any, run: LocalRun) -> Any:
        """Return the value to minimise in one step, as a torch scalar. Default: the mean loss.

        Args:
            loss: Mean loss of the batch, a torch scalar.
            outputs: The model's outputs.
            labels: The labels.
            run: The training.
        """
        return loss

    def gradient(self, gradient: Weights, weights: Weights, run: LocalRun) -> Weights:
        """Return the gradient to step along. Default: the gradient of the objective.

        Args:
            gradient: Gradient of the objective for this batch; 0 for buffers and frozen parameters.
            weights: The current weights.
            run: The training.
        """
        return gradient

    def finish(self, update: Weights, run: LocalRun) -> Weights:
        """Return the update to send, and set `run.state` and `run.sent`. Default: the update.

        Args:
            update: The final weights minus `run.start`.
            run: The training; `run.steps` is the number of steps that count.
        """
        return update


class PartPolicy(Policy):
    """Decides which part of the model a client trains and sends. Server and client compute it alike.

    Each parameter is averaged over the clients that trained it. The bytes of a part and its seconds are charged.
    """

    slot = "part"

    @property
    def is_whole(self) -> bool:
        """Whether every client trains the whole model."""
        return False

    @property
    def outside(self) -> Outside:
        """State of the parameters outside the part on the client: "absent", "frozen", "local" or "dropped"."""
        return "absent"

    @abstractmethod
    def mask(self, layout: Layout, client: str, rank: float, order: Order) -> NDArray[np.bool_]:
        """Return for each parameter whether the client trains and sends it.

        Args:
            layout: Names and shapes of the model's tensors.
            client: The client's id.
            rank: Share of the clients that are slower than this one, from 0 (the slowest) to below 1.
            order: What the server asks for in this round.
        """

    @property
    def follows_shares(self) -> bool:
        """Whether the part of a client follows from `Order.shares`, so that it differs from round to round.

        The ledger then records the seconds of a batch of the whole model, from which the next share is computed.
        """
        return False

    def batch_share(self, layout: Layout, mask: NDArray[np.bool_], flops: Mapping[str, float]) -> float:
        """Return the seconds of a batch as a share of the whole model's.

        Default: the share of the FLOPs of trained parameters for a smaller model; a third for the forward pass plus two
        thirds of that share for a model with frozen parameters; 1 if all parameters are trained.

        Args:
            layout: Names and shapes of the model's tensors.
            mask: The part.
            flops: Share of a batch's FLOPs that each tensor causes, by its name. Empty if they were not counted: all
                parameters then count equally.
        """
        share = float(mask.mean()) if len(mask) else 1.0
        if flops and len(mask):
            share = sum(flops[name] * float(mask[span].mean()) for name, span in layout.spans.items() if flops[name])
            share = min(share, 1.0)
        return {"absent": share, "frozen": (1 + 2 * share) / 3}.get(self.outside, 1.0)
