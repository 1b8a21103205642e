"""`UsefulWork` with an exponent learned during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, DeadlinePolicy, Private
from fedbalancer.core.types import STEP_BINS, FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.deadline.useful import UsefulState, UsefulWork

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
