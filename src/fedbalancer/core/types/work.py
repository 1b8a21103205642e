"""One client's local training, and how long it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types.arrays import FloatArray, IndexArray, Weights

Count = TypeVar("Count", int, NDArray[Any])

FORWARD_PASS_EPOCHS = 0.5
"""A forward pass over all data takes half the time of one training epoch."""


def batches_per_epoch(samples: Count, batch_size: int, most: int | None = None) -> Count:
    """floor((m - 1) / B) + 1 batches of m samples, the short last one included; never fewer than one, and at most
    `most` where every epoch is cut short. Takes one count, or an array of counts that may be means.

    >>> batches_per_epoch(11, 10), batches_per_epoch(95, 10, most=1), batches_per_epoch(np.array([1, 10, 11]), 10)
    (2, 1, array([1, 1, 2]))
    """
    whole = (samples - 1) // batch_size + 1
    if isinstance(whole, int):
        return max(whole if most is None else min(whole, most), 1)
    return np.asarray(np.maximum(whole if most is None else np.minimum(whole, most), 1))


STEP_BINS = 12
"""Kinds of local steps that are told apart: the first, the next two, the next four and so on; the last has the rest."""


def step_bin(steps: IndexArray) -> IndexArray:
    """Of which kind a step is that came after so many others.

    >>> step_bin(np.array([0, 1, 2, 3, 6, 7, 10**9])).tolist()
    [0, 1, 1, 2, 2, 3, 11]
    """
    return np.asarray(np.minimum(np.frexp(steps + 1.0)[1] - 1, STEP_BINS - 1), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ClientWork:
    """One local training, as pure work: `batches` steps over `indices`, reshuffled every epoch, of which every epoch
    trains the first `epoch_batches` batches (None: all)."""

    client: str
    indices: IndexArray
    batches: int
    batch_size: int
    learning_rate: float
    mu: float
    clip_norm: float | None
    seed: int
    epoch_batches: int | None = None

    @property
    def per_epoch(self) -> int:
        """Batches of one epoch."""
        return batches_per_epoch(len(self.indices), self.batch_size, self.epoch_batches)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """The result of a `ClientWork`: the update, and of the samples really seen, in ascending order, the loss when each
    was first seen, taken in its mini-batch just before that step, and how many steps came before it (None where whoever
    trained did not count)."""

    client: str
    update: Weights
    seen: IndexArray
    losses: FloatArray
    steps: IndexArray | None = None
