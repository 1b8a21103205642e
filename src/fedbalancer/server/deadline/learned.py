"""The deadline with the most useful work per second, by a worth of batches that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedbalancer.core.contracts import LOSSES, DeadlinePolicy, Private
from fedbalancer.core.types import STEP_BINS, FloatArray, IndexArray, RoundResult, ServerState, Setup
from fedbalancer.server.deadline.useful import UsefulState, UsefulWork

POWERS = np.arange(1, 20) / 20
"""The powers that are weighed against each other. Before anything is known their mean is canter's own, .5."""
FORGETTING = 8.0
"""What is known is of about the last ninth of the rounds, as the averaged model is: worth changes with the model."""


def _none() -> FloatArray:
    return np.zeros(len(POWERS))


@dataclass(frozen=True, eq=False)
class LearnedState:
    """What `UsefulWork` remembers; for every power the sums, over all that was told, of the fall of a loss times the
    fall of that power, and of the latter squared; sum and number of the squares of what losses are off from the mean of
    their steps; how many rounds."""

    useful: UsefulState = field(default_factory=UsefulState)
    along: FloatArray = field(default_factory=_none)
    length: FloatArray = field(default_factory=_none)
    squares: float = 0.0
    freedom: float = 0.0
    rounds: int = 0

    @property
    def power(self) -> float:
        """By what power of the steps losses fall: the mean over `POWERS`, each by its likelihood with its best factor
        from 0 on, where losses are off by as much as they were seen to be."""
        if not (self.length > 0).all() or self.squares <= 0:
            return float(POWERS.mean())
        explained = np.maximum(self.along, 0.0) ** 2 / (self.length * self.squares / max(self.freedom, 1.0))
        likely = np.exp((explained - explained.max()) / 2)
        return float(POWERS @ likely / likely.sum())


def middles(counts: FloatArray, batch_size: int) -> FloatArray:
    """How many steps came before those of every kind, in the mean, if clients (rows) met so many samples in them.

    >>> middles(np.array([[10.0, 20.0, 40.0], [10.0, 10.0, 0.0]]), 10).tolist()
    [[0.0, 1.5, 4.5], [0.0, 1.0, 2.5]]
    """
    first = 2.0 ** np.arange(counts.shape[1]) - 1
    return np.asarray(first + (np.ceil(counts / batch_size) - 1) / 2)


@dataclass(frozen=True)
class LearnedWork(DeadlinePolicy):
    """Ours: `UsefulWork` with a power that nobody has to choose. Clients tell with what loss they met samples for the
    first time after so many local steps (`LossesBySteps`): the fall of it is what further steps were worth to samples
    that they were not made with. Each client is compared with itself only, so it does not matter that slow phones get
    less far than others.

    What a client learns of its own samples is not all of use to the others', so this is the shape of the worth, not its
    size, and on the side of short rounds where clients differ much.
    """

    needs_losses: ClassVar[bool] = True
    reacts_to: ClassVar[frozenset[Private]] = LOSSES

    def init(self, setup: Setup) -> LearnedState:
        return LearnedState()

    def refuses(self, method: Any) -> str | None:
        """It has to be told of single steps."""
        if method.summary.releases_steps:
            return None
        return "LearnedWork learns from how losses fall while clients train, which takes summary=LossesBySteps"

    def plan(self, setup: Setup, state: ServerState, cohort: IndexArray) -> tuple[float, int]:
        own: LearnedState = state.deadline
        return UsefulWork(own.power).plan(setup, replace(state, deadline=own.useful), cohort)

    def observe(self, setup: Setup, state: ServerState, result: RoundResult) -> LearnedState:
        own: LearnedState = state.deadline
        useful = UsefulWork().observe(setup, replace(state, deadline=own.useful), result)
        told = [report.summary.released for report in result.reports if report.summary.released]
        return replace(learned(own, told, setup.batch_size), useful=useful)


def learned(own: LearnedState, told: Sequence[Sequence[float]], batch_size: int) -> LearnedState:
    """What is known after a round in which clients told this of their losses by steps."""
    if not told:
        return own
    counts, sums, squares = np.array(told).reshape(len(told), 3, STEP_BINS).transpose(1, 0, 2)
    there = counts >= 1  # with noise a count may be anything
    counts = np.where(there, counts, 0.0)
    means = np.where(there, sums, 0.0) / np.maximum(counts, 1.0)
    # From one kind of steps to the next, of the clients that told of both.
    both = there[:, 1:] & there[:, :-1]
    fall = (means[:, :-1] - means[:, 1:])[both]
    weight = (counts[:, 1:] * counts[:, :-1])[both] / (counts[:, 1:] + counts[:, :-1])[both]
    steps = middles(counts, batch_size)
    shapes = steps[:, 1:][both] ** POWERS[:, None] - np.maximum(steps[:, :-1][both], 0.0) ** POWERS[:, None]
    spread = np.where(there, np.maximum(squares - counts * means**2, 0.0), 0.0)
    rounds = own.rounds + 1
    kept = 1 - (FORGETTING + 1) / (FORGETTING + rounds)
    return replace(
        own,
        along=kept * own.along + (weight * fall * shapes).sum(axis=1),
        length=kept * own.length + (weight * shapes**2).sum(axis=1),
        squares=kept * own.squares + float(spread.sum()),
        freedom=kept * own.freedom + float(np.maximum(counts - 1, 0.0).sum()),
        rounds=rounds,
    )
