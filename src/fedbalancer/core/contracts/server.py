"""Base classes of the server's slots."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedbalancer.core.contracts.policy import Policy
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import (
    Arrays,
    ClientReport,
    FloatArray,
    IndexArray,
    LateRule,
    RoundResult,
    ServerState,
    Setup,
    UpdateFold,
    Weights,
)


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

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the rows that `select_clients` may choose from. Default: all that are available.

        On Flower, a round waits until at least one client is eligible.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            available: Ledger rows of clients that are connected and free.
        """
        return available

    def rank_reserve(self, setup: Setup, state: ServerState, candidates: IndexArray) -> IndexArray:
        """Return the clients for places that become free before the next step of an asynchronous server.

        Neither the model nor the ledger changes between two steps, so the server asks once per step. A candidate that
        is not available when a place becomes free is skipped.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            candidates: Ledger rows of all clients outside the cohort.

        Returns:
            The candidates, first choice first. Default: in random order.
        """
        return stream(setup.seed, "reserve", state.round + 1).permutation(candidates)


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

    def part_sizes(self, setup: Setup, state: ServerState, cohort: IndexArray) -> FloatArray | None:
        """Return the share of the model that each client trains, for the policy in slot `part`; None: that decides.

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

    def fold(self, setup: Setup, state: ServerState) -> UpdateFold | None:
        """Return a fold that computes the same as `aggregate`; None if the policy needs all updates at once.

        With a fold, the memory of a round does not grow with the number of its reports. Derive from `SumAggregator` to
        have one.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round.
        """
        return None

    @property
    def handles_parts(self) -> bool:
        """Whether it averages each parameter over the clients that trained it (`ClientReport.part`)."""
        return False

    def order_arrays(self, setup: Setup, state: ServerState) -> Arrays:
        """Return the named float32 arrays that every client of the next round receives besides the model.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
        """
        return {}

    def client_rates(self, setup: Setup, state: ServerState, clients: Sequence[str]) -> Mapping[str, float]:
        """Return the factor of the learning rate of each client of the next round. Default: 1 for all.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            clients: Ids of the cohort, sorted.
        """
        return {}

    def cohort_faults(self, state: ServerState, reports: Sequence[ClientReport]) -> Mapping[str, str]:
        """Return faults that only show when the reports of a round are compared: client id to explanation.

        Args:
            state: The current state.
            reports: The reports of the round.
        """
        return {}


class SumAggregator(Aggregator):
    """Base of aggregators that need only a sum over the updates, never two updates at the same time."""

    @abstractmethod
    def start(self, setup: Setup, state: ServerState) -> UpdateFold:
        """Return a fold without reports.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round.
        """

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        fold = self.start(setup, state)
        for report in sorted(reports, key=lambda report: report.client):
            fold.add(report)
        return fold.finish()

    def fold(self, setup: Setup, state: ServerState) -> UpdateFold | None:
        """Return `start`; None for a subclass that aggregates or compares reports in its own way."""
        bases = type(self).__mro__
        start, aggregate, compare = (
            next(place for place, base in enumerate(bases) if name in vars(base))
            for name in ("start", "aggregate", "cohort_faults")
        )
        return self.start(setup, state) if start <= aggregate and bases[compare] is Aggregator else None


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

    @property
    def refills(self) -> bool:
        """Whether a place that becomes free during a round is filled at once, if late reports count."""
        return True

    def eligible(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        """Return the rows that may start now. Default: all that are available.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            available: Ledger rows of clients that are connected and free.
        """
        return available

    def timer_s(self, setup: Setup, state: ServerState) -> float:
        """Return the seconds after which a round closes even without a report, if late reports count. Default: inf.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
        """
        return math.inf

    @property
    def most_steps(self) -> int | None:
        """Most batches that `local_steps` asks for; None if it does not set them."""
        return None

    def local_steps(self, setup: Setup, state: ServerState, cohort: IndexArray) -> Sequence[int] | None:
        """Return the batches that each client trains; None: the epochs of the task.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            cohort: Ledger rows of the selected clients.
        """
        return None

    def combined(self, setup: Setup, state: ServerState, result: RoundResult) -> Sequence[ClientReport]:
        """Return the reports that are aggregated after a round. Default: `weighted` of those that arrived.

        Without any, the model stays.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round, with the ledger already updated.
            result: What happened in the round.
        """
        return self.weighted(setup, state, result.reports)

    def weighted(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        """Return the reports as they are aggregated, for example with less weight for stale ones.

        Args:
            setup: What the server knows before the first round.
            state: The current state.
            reports: The reports of the round.
        """
        return reports
