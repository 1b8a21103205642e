"""The mini-batches of a local training: a fresh shuffle every epoch, the short last batch kept."""

from __future__ import annotations

from collections.abc import Iterator

from fedbalancer.randomness import stream
from fedbalancer.types import ClientWork, IndexArray


def batches(work: ClientWork) -> Iterator[tuple[int, IndexArray]]:
    """Epoch and sample numbers of each of the `work.batches` batches, a function of the work's seed and client.

    >>> import numpy as np
    >>> work = ClientWork("ann", np.arange(5), batches=4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
    >>> [(epoch, len(rows)) for epoch, rows in batches(work)]
    [(0, 2), (0, 2), (0, 1), (1, 2)]
    """
    if work.batches > 0 and len(work.indices) == 0:
        raise ValueError(f"client {work.client!r} was given {work.batches} batches of no samples")
    left, epoch = work.batches, 0
    while left > 0:
        order = stream(work.seed, "batches", epoch, work.client).permutation(work.indices)
        for start in range(0, min(len(order), left * work.batch_size), work.batch_size):
            yield epoch, order[start : start + work.batch_size]
            left -= 1
        epoch += 1
