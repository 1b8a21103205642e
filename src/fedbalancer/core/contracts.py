"""One abstract base class per slot of a method.

A base class declares everything that the system may ask of a policy in its slot. Abstract methods are required; all
other methods and properties have a neutral default. A policy is a frozen dataclass that derives from the base of its
slot, changes none of its arguments and keeps no hidden state: a server policy stores what it remembers in its field of
`ServerState`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.fields import check_fields
from fedbalancer.core.types import (
    ClientReport,
    FloatArray,
    IndexArray,
    LateRule,
    Layout,
    Order,
    Release,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    TrainResult,
    Weights,
)

Private: TypeAlias = Literal["losses", "updates"]
"""Parts of a report that depend on the client's data: the statistics of its losses, and its update."""
NOTHING: frozenset[Private] = frozenset()
LOSSES: frozenset[Private] = frozenset({"losses"})
EVERYTHING: frozenset[Private] = frozenset({"losses", "updates"})


class Policy(ABC):
    """Base of all policies. Derive from the base of a slot, for example `DeadlinePolicy`."""

    slot: ClassVar[str]
    """The name of the slot, for example "deadline"."""

    def __post_init__(self) -> None:
        """Check the fields of the policy against their types and ranges."""
        check_fields(self)

    @property
    def needs_losses(self) -> bool:
        """Whether the policy requires that clients release statistics of their losses."""
        return False

    @property
    def needs_counts(self) -> bool:
        """Whether the policy requires the number of local steps or samples, which a private summary withholds."""
        return False

    @property
    def reacts_to(self) -> frozenset[Private]:
        """The private parts of one client's report that may affect other clients.

        For a server policy: what may change who is selected, their order, or how their updates count. For a sample
        selector: what the number of selected samples depends on. A subclass must declare this again, otherwise
        `reactions` assumes `EVERYTHING`.
        """
        return EVERYTHING

    def refuses(self, method: Any) -> str | None:
        """Return why the policy cannot work with the other policies of a method, or None if it can.

        Args:
            method: The method that the policy is a part of.
        """
        return None


class ServerPolicy(Policy):
    """Base of all server policies."""

    def init(self, setup: Setup) -> Any:
        """Return the policy's state before the first round: None or a frozen dataclass. Default: None.

        Args:
            setup: What the server knows before the first round.
        """
        return None


class ObservingPolicy(ServerPolicy):
    """Base of server policies that learn from the result of every round."""

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Any:
        """Return the policy's next state. Default: None, for a policy without state.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round, with the ledger already updated.
            result: What happened in the round.
        """
        return None


class ClientSelector(ObservingPolicy):
    """Selects the clients of a round."""

    slot = "clients"

    @abstractmethod
    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the ledger rows of the cohort.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            available: Ledger rows to choose from.

        Returns:
            At least min(K, available) different rows. A method may invite more clients than it waits for.
        """


class ThresholdPolicy(ObservingPolicy):
    """Sets the loss threshold of a round."""

    slot = "threshold"

    @property
    def needs_fractions(self) -> bool:
        """Whether the policy requires the shares that the summary `FractionTracker` releases."""
        return False

    @abstractmethod
    def threshold(self, setup: Setup, state: ServerState) -> float:
        """Return the loss threshold of the next round, 0 or more.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
        """


class Ratios(Protocol):
    """The state of a pace policy, which threshold and deadline policies read."""

    @property
    def loss_threshold_ratio(self) -> float: ...
    @property
    def deadline_ratio(self) -> float: ...
    @property
    def utility(self) -> float | None: ...


class PacePolicy(ObservingPolicy):
    """Controls the loss-threshold ratio and the deadline ratio; its state is a `Ratios`."""

    slot = "pace"

    @abstractmethod
    def init(self, setup: Setup) -> Ratios:
        """Return the ratios before the first round."""

    @abstractmethod
    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> Ratios:
        """Return the ratios after a round."""


class DeadlinePolicy(ObservingPolicy):
    """Decides when a round closes."""

    slot = "deadline"

    @abstractmethod
    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        """Return the deadline in seconds (may be infinite) and the number of reports that close the round early.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            cohort: Ledger rows of the selected clients.
        """

    def between(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, float] | None:
        """Return dl and dh of Algorithm 4, or None if the policy does not use them.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            cohort: Ledger rows of the selected clients.
        """
        return None

    def retime(self, setup: Setup, own: Any) -> Any:
        """Return the policy's state `own` with T recomputed from `setup`. Default: `own`, for policies without T.

        Args:
            setup: What the server knows before the first round.
            own: The policy's state.
        """
        return own


class Aggregator(ServerPolicy):
    """Combines the reports of a round into new global weights."""

    slot = "aggregate"

    @property
    def counts_votes(self) -> bool:
        """Whether it aggregates signs by a majority vote."""
        return False

    @property
    def model_noise_multiplier(self) -> float | None:
        """Noise added to the model, divided by its sensitivity to one client; None for no noise.

        An aggregator with noise is also called in rounds without reports.
        """
        return None

    @property
    def noise_is_known(self) -> bool:
        """Whether everybody who knows the seed can remove that noise."""
        return False

    @property
    def flower_strategy(self) -> Any:
        """The Flower strategy that aggregates, or None."""
        return None

    @abstractmethod
    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        """Return the new weights and the policy's next state.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round, with the ledger already updated.
            reports: At least one report, unless the policy has a `model_noise_multiplier`.
        """

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Return faults that only show when the reports of a round are compared: client id to explanation.

        Args:
            state: The current state.
            reports: The reports of the round.
        """
        return {}


class ModelAverage(ServerPolicy):
    """Decides which model is evaluated and delivered. Clients always train from the last round's weights."""

    slot = "model_average"

    def after(self, setup: Setup, state: ServerState, weights: Weights) -> Any:
        """Return the policy's next state after a round produced `weights`. `state` is from before the round.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            weights: The weights after the round.
        """
        return None

    @abstractmethod
    def model(self, state: ServerState) -> Weights:
        """Return the model to evaluate and to deliver.

        Args:
            state: The current state.
        """


class LatePolicy(ObservingPolicy):
    """Decides what happens to reports that arrive after their round has closed."""

    slot = "late"

    @abstractmethod
    def rule(self) -> LateRule:
        """Return whether a late report is lost, joins the round in which it arrives, or also counts for its quorum."""

    def room(self, setup: Setup, state: ServerState) -> int:
        """Return how many clients to select. Default: K.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
        """
        return setup.clients_per_round

    def quorum(self, setup: Setup, state: ServerState, quorum: int) -> int:
        """Return how many reports close the round, given the deadline policy's quorum. Default: the same number.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            quorum: The deadline policy's quorum.
        """
        return quorum

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        """Return the reports as they are aggregated, for example with less weight for stale ones.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            reports: The reports of the round.
        """
        return reports


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


SLOTS: dict[str, type[Policy]] = {
    base.slot: base
    for base in (
        ClientSelector, SampleSelector, DeadlinePolicy, WorkPolicy, Aggregator, ModelAverage, LatePolicy,
        ThresholdPolicy, PacePolicy, Summarizer, Compressor,
    )
}  # fmt: skip
"""The base class of every slot."""


def policies_in(module: ModuleType, slot: str) -> dict[str, type[Policy]]:
    """Return the policies of a slot that a module or package exports, by name.

    Importing a policy in the package of its slot registers it: names in settings, `fedbalancer list policies` and the
    reference follow from this.

    Args:
        module: The module or package.
        slot: The slot.
    """
    exported = ((name, value) for name, value in sorted(vars(module).items()) if isinstance(value, type))
    return {
        name: kind
        for name, kind in exported
        if issubclass(kind, SLOTS[slot]) and not inspect.isabstract(kind) and not name.startswith("_")
    }
