"""How work is divided among workers: the most expensive items first, in chunks that shrink towards the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbalancer.types import ClientWork

SHARE = 0.5
"""The part of an even share of the remaining work that a worker gets at once: the rest evens out what the prediction of
the costs missed."""


@dataclass(frozen=True)
class Chunk:
    """Positions in the list of work, rising; `lost` counts the workers that died over it."""

    positions: tuple[int, ...]
    lost: int = 0


class ChunkQueue:
    """The chunks of one list of work, of at most `most` items, taken one at a time by whoever is free.

    Guided self-scheduling (C. Polychronopoulos and D. Kuck, 1987) over work of unequal cost: a chunk is worth at most
    half an even share of what is left, so that there are few chunks, and the last ones are small.

    >>> queue = ChunkQueue([5, 1, 1, 3], workers=2)
    >>> queue.take().positions, queue.take().positions, queue.take().positions
    ((0,), (3,), (1,))
    """

    def __init__(self, costs: Sequence[float], workers: int, most: int | None = None) -> None:
        self._costs = costs
        self._most = len(costs) if most is None else most
        self._workers = workers
        self._left = sorted(range(len(costs)), key=lambda position: (costs[position], -position))
        self._cost_left = float(sum(costs))
        self._returned: list[Chunk] = []

    def take(self) -> Chunk | None:
        """The next chunk; None if there is nothing left."""
        if self._returned:
            return self._returned.pop()
        if not self._left:
            return None
        share = SHARE * self._cost_left / self._workers
        taken = [self._left.pop()]
        cost = self._costs[taken[0]]
        while self._left and len(taken) < self._most and cost + self._costs[self._left[-1]] <= share:
            cost += self._costs[self._left[-1]]
            taken.append(self._left.pop())
        self._cost_left -= cost
        return Chunk(tuple(sorted(taken)))

    @property
    def is_empty(self) -> bool:
        return not self._left and not self._returned

    def put_back(self, chunk: Chunk) -> None:
        """A chunk that has to be done again, first of all."""
        self._returned.append(chunk)

    def drop_after(self, position: int) -> None:
        """Forget the work after this position: it has failed, and only an earlier failure could still matter."""
        self._left = [each for each in self._left if each < position]
        self._returned = [chunk for chunk in self._returned if chunk.positions[0] < position]


def training_cost(work: ClientWork) -> float:
    """Samples that a training visits, and one batch more for what every client costs.

    >>> import numpy as np
    >>> training_cost(ClientWork("ann", np.arange(25), 6, 10, 0.1, 0.0, None, 0))
    60.0
    """
    per_epoch = max(-(-len(work.indices) // work.batch_size), 1)
    cut_short = work.epoch_batches is not None and work.epoch_batches < per_epoch
    mean_batch = work.batch_size if cut_short else len(work.indices) / per_epoch
    return float(work.batches * mean_batch + work.batch_size)
