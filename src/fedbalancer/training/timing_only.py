"""A trainer that trains nothing, for runs that only simulate the clock; it needs neither torch nor data."""

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
    """A `Trainer` without weights, whose losses are all 1. Loss lists are read-only and may be shared.

    Args:
        sizes: Number of samples of each client.

    >>> trainer = TimingOnly({"ann": 3})
    >>> trainer.losses(trainer.initial_weights(0), "ann")
    array([1., 1., 1.])
    """

    sizes: Mapping[str, int]

    @property
    def layout(self) -> Layout:
        """The empty layout."""
        return Layout()

    def initial_weights(self, seed: int) -> Weights:
        """Return the empty vector."""
        return np.empty(0, dtype=np.float32)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """Return an empty update and the samples that a real trainer would see, each with a loss of 1."""
        is_whole = work.epoch_batches is None and not work.training.drop_last
        if is_whole and work.batches * work.batch_size >= len(work.indices):
            seen = np.sort(work.indices)
        else:
            seen = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(rows for _, rows in batches(work))]))
        sent = {} if work.train is None else work.train.up_arrays(self.layout)
        arrays = {name: np.zeros(shape, dtype=np.float32) for name, shape in sent.items()}
        return TrainResult(work.client, np.empty(0, dtype=np.float32), seen, _ones(len(seen)), arrays=arrays)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Return a loss of 1 for every sample of the client."""
        return _ones(self.sizes[client])

    def evaluate(self, weights: Weights) -> Evaluation:
        """Return NaN over 0 samples."""
        return Evaluation(math.nan, math.nan, 0)

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """Return NaN over 0 samples."""
        return Evaluation(math.nan, math.nan, 0)


@cache
def _ones(count: int) -> FloatArray:
    ones = np.ones(count)
    ones.flags.writeable = False
    return ones
