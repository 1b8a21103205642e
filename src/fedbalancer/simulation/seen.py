"""With which losses samples were trained on: only a simulator, which has everybody's, can tell. Nothing of it reaches
the server, or changes a run; it is for whoever reads a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from fedbalancer.core.types import TrainResult

SHARES = (0.1, 0.5, 0.9)
SeenLosses: TypeAlias = tuple[float, float, float]
"""A tenth of the samples had a lower loss than the first, half than the second, nine tenths than the third."""


def seen_losses(trained: Sequence[TrainResult]) -> SeenLosses | None:
    """Of all samples of a round, the loss when each was first seen; None where there was no training.

    >>> one = Trained("ann", np.zeros(2), np.arange(11), np.linspace(0.0, 1.0, 11))
    >>> [round(loss, 6) for loss in seen_losses([one])], seen_losses([])
    ([0.1, 0.5, 0.9], None)
    """
    losses = np.concatenate([each.losses for each in trained]) if trained else np.zeros(0)
    known = losses[np.isfinite(losses)]
    if not len(known):
        return None
    low, median, high = np.quantile(known.astype(np.float64), SHARES).tolist()
    return low, median, high
