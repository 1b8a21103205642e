"""Weighted means of updates: FedAvg, FedNova, q-FFL and signSGD's majority vote."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import Aggregator, SumAggregator
from fedbalancer.core.fields import Bounds, UpTo100
from fedbalancer.core.types import ClientReport, FloatArray, ServerState, Setup, Weights
from fedbalancer.core.types.round import total
from fedbalancer.core.types.round import total as total_of

CHUNK = 2**15
"""Weights summed at a time, so that the partial sums fit into the cache. Does not change the result."""


def mean_update(reports: Sequence[ClientReport]) -> FloatArray:
    """Return the mean update, each update weighted by its report's `weight`.

    If clients trained parts of the model, each parameter is averaged over the clients that trained it. The sum uses
    double precision and the order of client ids, so the order of arrival does not change the bytes.

    Args:
        reports: At least one report.

    Returns:
        One value per parameter.
    """
    ordered = sort_by_client(reports)
    if any(report.part is not None for report in ordered) and len(ordered[0].update):
        return _mean_of_parts(ordered)
    total = np.zeros(ordered[0].update.shape, dtype=np.float64)
    weights = total_of(report.weight for report in ordered)
    for start in range(0, len(total), CHUNK):
        piece = slice(start, start + CHUNK)
        part = total[piece]
        weighted = np.empty_like(part)
        for report in ordered:
            part += np.multiply(report.update[piece], report.weight, out=weighted, dtype=np.float64)
        part /= weights
    return total


def _mean_of_parts(ordered: Sequence[ClientReport]) -> FloatArray:
    """Return the mean update of each parameter over the clients that trained it; 0 if there is none."""
    total, weights = np.zeros((2, *ordered[0].update.shape))
    for report in ordered:
        covered = np.ones(1) if report.part is None else report.part.astype(np.float64)
        total += report.update * covered * report.weight
        weights += covered * report.weight
    mean: FloatArray = np.divide(total, weights, out=np.zeros_like(total), where=weights > 0)
    return mean


@dataclass(frozen=True, eq=False)
class MeanUpdate:
    """The weighted mean of a round's updates.

    Args:
        value: One value per parameter.
        weights: Weight of each report, in the order of client ids.
        squares: Squared norm of each update, for policies that use it.
    """

    value: FloatArray
    weights: tuple[float, ...]
    squares: tuple[float, ...] = ()


class MeanFold:
    """Computes a `MeanUpdate` report by report, with the bytes of `mean_update`.

    Args:
        size: Number of parameters.
        with_squares: Whether to compute the squared norms.
        step: Computes weights and state from the mean.
    """

    def __init__(self, size: int, with_squares: bool, step: Callable[[MeanUpdate], tuple[Weights, Any]]) -> None:
        self._total, self._scratch = np.zeros(size), np.empty(min(size, CHUNK))
        self._weights: list[float] = []
        self._squares: list[float] = []
        self._with_squares, self._step = with_squares, step

    def add(self, report: ClientReport) -> None:
        """Add a report."""
        for start in range(0, len(self._total), CHUNK):
            part = self._total[start : start + CHUNK]
            weighted = self._scratch[: len(part)]
            part += np.multiply(report.update[start : start + CHUNK], report.weight, out=weighted, dtype=np.float64)
        self._weights.append(report.weight)
        if self._with_squares:
            self._squares.append(squared_norm(report.update))

    def finish(self) -> tuple[Weights, Any]:
        """Return the new weights and the policy's next state."""
        self._total /= total_of(self._weights)
        return self._step(MeanUpdate(self._total, tuple(self._weights), tuple(self._squares)))


def squared_norm(update: Weights) -> float:
    """Return the squared norm of an update, in double precision."""
    return float(np.dot(update, update.astype(np.float64)))


class MeanAggregator(SumAggregator):
    """Base of aggregators that use updates only through their weighted mean, and through their norms."""

    needs_norms: ClassVar[bool] = False
    """Whether `step` uses the norms of the single updates."""

    @abstractmethod
    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, Any]:
        """Return the new weights and the policy's next state.

        Args:
            setup: What the server knows before the first round.
            state: The state before the round.
            mean: The mean update.
        """

    def start(self, setup: Setup, state: ServerState) -> MeanFold:
        return MeanFold(len(state.weights), self.needs_norms, partial(self.step, setup, state))

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, Any]:
        ordered = sort_by_client(reports)  # all of them are in memory: adding them chunk by chunk is faster
        squares = tuple(squared_norm(report.update) for report in ordered) if self.needs_norms else ()
        weights = tuple(report.weight for report in ordered)
        return self.step(setup, state, MeanUpdate(mean_update(ordered), weights, squares))


def sort_by_client(reports: Sequence[ClientReport]) -> list[ClientReport]:
    """Return the reports in order of client id.

    Args:
        reports: Reports in any order.
    """
    return sorted(reports, key=lambda report: report.client)


@dataclass(frozen=True)
class WeightedMean(MeanAggregator):
    """FedAvg: add the mean update, each client weighted by its number of trained samples.

    This is the paper's aggregation (figure 3, step 5).

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer").aggregate
        WeightedMean()
    """

    handles_parts: ClassVar[bool] = True

    def step(self, setup: Setup, state: ServerState, mean: MeanUpdate) -> tuple[Weights, None]:
        weights = np.empty_like(state.weights)
        for start in range(0, len(weights), CHUNK):  # without a copy of all weights in double precision
            piece = slice(start, start + CHUNK)
            weights[piece] = state.weights[piece] + mean.value[piece]
        return weights, None


def local_steps(setup: Setup, report: ClientReport) -> float:
    """Return the number of local steps behind a report: its epochs times the batches of its trained samples.

    Args:
        setup: Constants of the run.
        report: A client's report.

    Returns:
        At least 1.
    """
    per_epoch = setup.per_epoch(report.summary.trained)
    return float(max(report.epochs, 1.0) * max(per_epoch, 1))


@dataclass(frozen=True)
class FedNova(Aggregator):
    """FedNova: clients that take more local steps have no more influence.

    x += (sum p t) (sum p D / t), where p are the normalised client weights and t their local steps (Wang et al.,
    "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020). This is the
    normalisation for plain local SGD; it ignores a proximal term.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("prox+1t+fednova").aggregate
        FedNova()
    """

    needs_counts: ClassVar[bool] = True

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        steps = {report.client: local_steps(setup, report) for report in reports}
        weights = total(report.weight for report in reports)
        effective = total(report.weight / weights * steps[report.client] for report in reports)
        scaled = [
            replace(report, update=report.update * np.float32(effective / steps[report.client])) for report in reports
        ]
        return (state.weights + mean_update(scaled)).astype(np.float32), None


MIN_LOSS = 1e-10
"""Lower bound of a loss: noise may make it zero or negative, and its power infinite or complex."""


@dataclass(frozen=True)
class QFFL(Aggregator):
    """q-FedAvg: clients with a high loss count for more, so that accuracy is more even across clients.

    With L = 1 / learning rate as the estimate of the Lipschitz constant and g = L (w - w_k),

        Delta_k = F_k^q g,   h_k = q F_k^(q - 1) |g|^2 + L F_k^q,   w <- w - sum Delta_k / sum h_k.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2. With q = 0 it is the unweighted
    mean.

    Difference from the paper: F_k is the mean loss that the client releases, with the summary's noise. It covers the
    trained samples, each before its first step. The paper uses the loss of all local samples before training, which
    costs a forward pass per round. FedBalancer's authors did not publish the q of their experiments.

    Args:
        q: Strength of fairness.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedbalancer+qffl").aggregate
        QFFL(q=0.01)
    """

    needs_losses: ClassVar[bool] = True

    q: UpTo100 = 0.01

    def aggregate(self, setup: Setup, state: ServerState, reports: Sequence[ClientReport]) -> tuple[Weights, None]:
        lipschitz = 1 / setup.rate_in(state.round + 1)
        total, h = np.zeros(state.weights.shape), 0.0
        for report in sort_by_client(reports):
            loss = max(report.summary.loss_mean, MIN_LOSS)
            gradient = -lipschitz * report.update.astype(np.float64)
            total += loss**self.q * gradient
            h += self.q * loss ** (self.q - 1) * float(gradient @ gradient) + lipschitz * loss**self.q
        return (state.weights - total / h).astype(np.float32), None


@dataclass(frozen=True)
class MajorityVote(SumAggregator):
    """signSGD's majority vote: every parameter moves by a fixed step in the direction of the majority.

    Every client has one vote per parameter. A parameter with a tie does not move (Bernstein et al., "signSGD with
    Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019).

    Difference from the paper: a vote is the sign of a whole local update, not of one gradient.

    Args:
        step: Step length. None: the task's learning rate, as in the paper's update rule.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("fedavg+1t+signsgd").aggregate
        MajorityVote(step=None)
    """

    counts_votes: ClassVar[bool] = True

    step: Annotated[float, Bounds(gt=0)] | None = None

    def start(self, setup: Setup, state: ServerState) -> VoteFold:
        return VoteFold(state.weights, setup.rate_in(state.round + 1) if self.step is None else self.step)


class VoteFold:
    """Counts votes report by report.

    Args:
        weights: The weights before the round.
        step: Step length.
    """

    def __init__(self, weights: Weights, step: float) -> None:
        self._weights, self._step = weights, step
        self._votes = np.zeros(weights.shape)

    def add(self, report: ClientReport) -> None:
        """Add a report."""
        self._votes += np.sign(report.update)

    def finish(self) -> tuple[Weights, None]:
        """Return the new weights."""
        return (self._weights + self._step * np.sign(self._votes)).astype(np.float32), None
