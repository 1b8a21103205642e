"""The mini-batches of a local training: a fresh shuffle every epoch, the short last batch kept."""

from __future__ import annotations

from collections.abc import Iterator

from fedbalancer.core.randomness import stream
from fedbalancer.core.types import ClientWork, IndexArray


def epochs(work: ClientWork) -> Iterator[IndexArray]:
    """The sample numbers that each epoch trains, in order, `work.batches` batches in all: a function of the work's seed
    and client. With `epoch_batches` an epoch is the first so many batches of its shuffle.

    >>> import numpy as np
    >>> work = ClientWork("ann", np.arange(5), batches=4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
    >>> [len(rows) for rows in epochs(work)]
    [5, 2]
    """
    if work.batches > 0 and len(work.indices) == 0:
        raise ValueError(f"client {work.client!r} was given {work.batches} batches of no samples")
    if work.epoch_batches is not None and work.epoch_batches < 1:
        raise ValueError(f"client {work.client!r} was given epochs of {work.epoch_batches} batches")
    for epoch, done in enumerate(range(0, work.batches, work.per_epoch)):
        order = stream(work.seed, "batches", epoch, work.client).permutation(work.indices)
        yield order[: min(work.per_epoch, work.batches - done) * work.batch_size]


def batches(work: ClientWork) -> Iterator[tuple[int, IndexArray]]:
    """Epoch and sample numbers of each batch.

    >>> import numpy as np
    >>> work = ClientWork("ann", np.arange(5), batches=4, batch_size=2, learning_rate=0.1, mu=0, clip_norm=None, seed=0)
    >>> [(epoch, len(rows)) for epoch, rows in batches(work)]
    [(0, 2), (0, 2), (0, 1), (1, 2)]
    """
    for epoch, rows in enumerate(epochs(work)):
        for start in range(0, len(rows), work.batch_size):
            yield epoch, rows[start : start + work.batch_size]
