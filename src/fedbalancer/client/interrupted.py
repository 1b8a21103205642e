"""Interrupted training: what a client keeps of it, and when it continues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.core.types import Arrays, Weights

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
