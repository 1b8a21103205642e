"""A trainer that trains nothing: for runs in which only the clock matters. It needs no torch and no data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedbalancer.client.work import batches
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights


@dataclass(frozen=True, eq=False)
class TimingOnly:
    """A `Trainer` with no weights, in which every loss is 1. Lists of one length are one list, read-only.

    >>> trainer = TimingOnly({"ann": 3})
    >>> trainer.losses(trainer.initial_weights(0), "ann")
    array([1., 1., 1.])
    """

    sizes: Mapping[str, int]

    @property
    def layout(self) -> Layout:
        return Layout()

    def initial_weights(self, seed: int) -> Weights:
        """The empty vector."""
        return np.empty(0, dtype=np.float32)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """No update; the samples that a real trainer would have seen, with a loss of 1 each."""
        if work.epoch_batches is None and work.batches * work.batch_size >= len(work.indices):
            seen = np.sort(work.indices)
        else:
            seen = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(rows for _, rows in batches(work))]))
        return TrainResult(work.client, np.empty(0, dtype=np.float32), seen, _ones(len(seen)))

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """A loss of 1 for every sample of the client."""
        return _ones(self.sizes[client])

    def evaluate(self, weights: Weights) -> Evaluation:
        """Nothing to evaluate: not a number, over no samples."""
        return Evaluation(math.nan, math.nan, 0)

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """Nothing to evaluate."""
        return Evaluation(math.nan, math.nan, 0)


@cache
def _ones(count: int) -> FloatArray:
    ones = np.ones(count)
    ones.flags.writeable = False
    return ones
