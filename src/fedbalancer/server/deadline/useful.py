"""The deadline with the most useful work per second, with a fixed or a learned exponent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, NOTHING, DeadlinePolicy, Private
from fedbalancer.core.types import STEP_BINS, FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.expected import forward_pass_batches

POINTS = 256
"""Number of deadlines tried between the shortest and the longest useful one, besides completion times.

They are one per cent apart if the longest is ten times the shortest.
"""


def useful_deadline(
    network_s: FloatArray, batch_s: FloatArray, most_batches: FloatArray, overhead_s: float, gamma: float
) -> float:
    """Return the t that maximises the sum over clients of b(t)^gamma / (t + overhead).

    b(t) is the number of whole batches that a client trains in t, at most `most_batches`. With one client and unlimited
    work, t - network = gamma / (1 - gamma) (network + overhead).

    Args:
        network_s: Transfer time of each client, in seconds.
        batch_s: Seconds per batch of each client.
        most_batches: Largest number of batches of each client.
        overhead_s: Seconds that a round takes in addition to t.
        gamma: Exponent of the value of batches.

    Returns:
        The earliest best deadline in seconds.

    Example:
        >>> round(useful_deadline(np.array([10.0]), np.array([0.1]), np.array([1e4]), 20.0, 0.5), -1)
        40.0
    """
    first, last = network_s + batch_s, network_s + batch_s * most_batches
    between = np.clip(np.geomspace(first.min(), last.max(), POINTS), first.min(), last.max())  # it rounds its ends
    candidates = np.unique(np.concatenate([first, last, between]))
    batches = np.minimum((candidates[:, None] - network_s) / batch_s + 1e-9, most_batches)
    useful = np.where(batches >= 1, np.maximum(batches, 0.0) ** gamma, 0.0).sum(axis=1)
    return float(candidates[np.argmax(useful / (candidates + overhead_s))])


@dataclass(frozen=True)
class UsefulState:
    """State of `UsefulWork`.

    Args:
        window_s: Duration of the last client selection, in seconds.
        failed: Number of consecutive rounds without a report.
    """

    window_s: float = 0.0
    failed: int = 0


@dataclass(frozen=True)
class UsefulWork(DeadlinePolicy):
    """Ours, used by canter: the deadline at which the next batch is worth less than the next round.

    For clients that may stop after any batch (`WholeBatches`), every deadline yields some work. n batches are valued at
    n^gamma, because local steps build on each other and drift away from other clients. A round's fixed costs, client
    selection and network, are measured.

    Algorithm 4's peak of completed clients per second is the special case of clients that contribute all or nothing.
    After rounds that no client completed in time, the deadline doubles until one does.

    Args:
        gamma: Exponent of the value of batches, between 0 and 1.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter").deadline
        UsefulWork(gamma=0.5)
    """

    reacts_to: ClassVar[frozenset[Private]] = NOTHING

    gamma: float = 0.5

    def init(self, setup: Setup) -> UsefulState:
        return UsefulState()

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        if not len(cohort):
            return 1.0, 0
        own, ledger = state.deadline, state.ledger
        network_s, batch_s = ledger.network_s[cohort], ledger.batch_s[cohort]
        if setup.forward_pass_every_round:
            network_s = network_s + forward_pass_batches(setup, ledger.size[cohort]) * batch_s
        most = setup.epochs * setup.per_epoch(ledger.size[cohort])
        deadline_s = useful_deadline(network_s, batch_s, most.astype(np.float64), own.window_s, self.gamma)
        return deadline_s * 2.0 ** min(own.failed, 30), len(cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> UsefulState:
        own: UsefulState = state.deadline
        failed = (
            own.failed + 1 if result.ran_out_of_time else 0 if result.reports or not result.plan.cohort else own.failed
        )
        return UsefulState(result.window_s, failed)


POWERS = np.arange(1, 20) / 20
"""Candidate exponents. Without data their mean is canter's default, 0.5."""
FORGETTING = 8.0
"""Decay of old data: about the last ninth of the rounds counts, as in the averaged model, because the value of steps
changes with the model.
"""


def _zeros() -> FloatArray:
    return np.zeros(len(POWERS))


@dataclass(frozen=True, eq=False)
class LearnedState:
    """State of `LearnedWork`. Sums decay over rounds.

    Args:
        useful: State of `UsefulWork`.
        projection: For every exponent, the sum of loss decrease times predicted decrease.
        norm_sq: For every exponent, the sum of squared predicted decreases.
        residual_sq: Sum of squared deviations of losses from the mean of their bin.
        degrees_of_freedom: Degrees of freedom of that sum.
        rounds: Number of rounds observed.
    """

    useful: UsefulState = field(default_factory=UsefulState)
    projection: FloatArray = field(default_factory=_zeros)
    norm_sq: FloatArray = field(default_factory=_zeros)
    residual_sq: float = 0.0
    degrees_of_freedom: float = 0.0
    rounds: int = 0

    @property
    def power(self) -> float:
        """The mean of `POWERS`, weighted by likelihood; each exponent uses its best non-negative factor."""
        if not (self.norm_sq > 0).all() or self.residual_sq <= 0:
            return float(POWERS.mean())
        explained = np.maximum(self.projection, 0.0) ** 2 / (
            self.norm_sq * self.residual_sq / max(self.degrees_of_freedom, 1.0)
        )
        likely = np.exp((explained - explained.max()) / 2)
        return float(POWERS @ likely / likely.sum())


def mean_prior_steps(counts: FloatArray, batch_size: int) -> FloatArray:
    """Return the mean number of local steps before the samples of each bin.

    Args:
        counts: Number of samples per client (rows) and bin (columns).
        batch_size: Samples per batch.

    Returns:
        An array of the same shape.

    Example:
        >>> mean_prior_steps(np.array([[10.0, 20.0, 40.0], [10.0, 10.0, 0.0]]), 10).tolist()
        [[0.0, 1.5, 4.5], [0.0, 1.0, 2.5]]
    """
    first = 2.0 ** np.arange(counts.shape[1]) - 1
    return np.asarray(first + (np.ceil(counts / batch_size) - 1) / 2)


@dataclass(frozen=True)
class LearnedWork(DeadlinePolicy):
    """Ours: `UsefulWork` with an exponent that is learned instead of chosen.

    Clients report the mean loss of samples when first seen, by the number of local steps before (`LossesBySteps`). Its
    decrease is the value of these steps for samples that were not used in them. Each client is compared with itself
    only, so slow phones, which take fewer steps, do not bias the estimate.

    Part of what a client learns is useful for its own samples only. The estimate therefore gives the shape of the
    value, not its size, and favours short rounds where clients differ much.

    Example:
        >>> import fedbalancer as fb
        >>> fb.method("canter+learned").deadline
        LearnedWork()
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    def init(self, setup: Setup) -> LearnedState:
        return LearnedState()

    def refuses(self, method: Any) -> str | None:
        """Refuse a summary that does not release losses by steps."""
        if method.summary.releases_steps:
            return None
        return "LearnedWork learns from losses by local steps, which only summary=LossesBySteps releases"

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own: LearnedState = state.deadline
        return UsefulWork(own.power).plan(setup, replace(state, deadline=own.useful), cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LearnedState:
        own: LearnedState = state.deadline
        useful = UsefulWork().observe(setup, replace(state, deadline=own.useful), result)
        released = [report.summary.released for report in result.reports if report.summary.released]
        return replace(update_estimate(own, released, setup.batch_size), useful=useful)


def update_estimate(own: LearnedState, released: Sequence[Sequence[float]], batch_size: int) -> LearnedState:
    """Return the state after a round.

    Args:
        own: The state before.
        released: What each client's `LossesBySteps` summary released.
        batch_size: Samples per batch.

    Returns:
        The next state.
    """
    if not released:
        return own
    counts, sums, squares = np.array(released).reshape(len(released), 3, STEP_BINS).transpose(1, 0, 2)
    present = counts >= 1  # noise may make a count smaller, even negative
    counts = np.where(present, counts, 0.0)
    means = np.where(present, sums, 0.0) / np.maximum(counts, 1.0)
    # Decrease from one bin to the next, for clients with samples in both.
    both = present[:, 1:] & present[:, :-1]
    fall = (means[:, :-1] - means[:, 1:])[both]
    weight = (counts[:, 1:] * counts[:, :-1])[both] / (counts[:, 1:] + counts[:, :-1])[both]
    steps = mean_prior_steps(counts, batch_size)
    shapes = steps[:, 1:][both] ** POWERS[:, None] - np.maximum(steps[:, :-1][both], 0.0) ** POWERS[:, None]
    spread = np.where(present, np.maximum(squares - counts * means**2, 0.0), 0.0)
    rounds = own.rounds + 1
    kept = 1 - (FORGETTING + 1) / (FORGETTING + rounds)
    return replace(
        own,
        projection=kept * own.projection + (weight * fall * shapes).sum(axis=1),
        norm_sq=kept * own.norm_sq + (weight * shapes**2).sum(axis=1),
        residual_sq=kept * own.residual_sq + float(spread.sum()),
        degrees_of_freedom=kept * own.degrees_of_freedom + float(np.maximum(counts - 1, 0.0).sum()),
        rounds=rounds,
    )
