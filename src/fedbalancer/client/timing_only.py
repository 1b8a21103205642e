"""A trainer that trains nothing: for runs in which only the clock matters. It needs no torch and no data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from fedbalancer.client.batches import batches
from fedbalancer.types import ClientWork, Evaluation, FloatArray, Layout, Trained, Weights


@dataclass(frozen=True, eq=False)
class TimingOnly:
    """A `Trainer` with no weights, in which every loss is 1.

    >>> trainer = TimingOnly({"ann": 3})
    >>> trainer.losses(trainer.initial_weights(0), "ann")
    array([1., 1., 1.])
    """

    sizes: Mapping[str, int]

    @property
    def layout(self) -> Layout:
        return ()

    def initial_weights(self, seed: int) -> Weights:
        """The empty vector."""
        return np.empty(0, dtype=np.float32)

    def train(self, weights: Weights, work: ClientWork) -> Trained:
        """No update; the samples that a real trainer would have seen in the first epoch, with a loss of 1 each."""
        if work.batches * work.batch_size >= len(work.indices):
            seen = np.sort(work.indices)
        else:
            first = [rows for _, rows in takewhile(lambda batch: batch[0] == 0, batches(work))]
            seen = np.sort(np.concatenate(first)) if first else np.empty(0, dtype=np.int64)
        return Trained(work.client, np.empty(0, dtype=np.float32), seen, np.ones(len(seen)))

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """A loss of 1 for every sample of the client."""
        return np.ones(self.sizes[client])

    def evaluate(self, weights: Weights) -> Evaluation:
        """Nothing to evaluate: not a number, over no samples."""
        return Evaluation(math.nan, math.nan, 0)
