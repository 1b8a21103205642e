"""How work is divided among workers: the most expensive items first, in chunks that shrink towards the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbalancer.core.types import ClientWork

SHARE = 0.5
"""The part of an even share of the remaining work that a worker gets at once: the rest evens out what the prediction of
the costs missed."""


@dataclass(frozen=True)
class Chunk:
    """Positions in the list of work, rising; `lost` counts the workers that died over it."""

    positions: tuple[int, ...]
    lost: int = 0

    def before(self, position: int) -> Chunk:
        """The part of it that comes before this position."""
        return replace(self, positions=tuple(each for each in self.positions if each < position))


def cut(costs: Sequence[float], workers: int, most: int | None = None) -> list[Chunk]:
    """Chunks of at most `most` items, in the order in which whoever is free takes them.

    Guided self-scheduling (C. Polychronopoulos and D. Kuck, 1987) over work of unequal cost: a chunk is worth at most
    half an even share of what is left, so that there are few chunks, and the last ones are small.

    >>> [chunk.positions for chunk in cut([5, 1, 1, 3], workers=2)]
    [(0,), (3,), (1,), (2,)]
    """
    left = sorted(range(len(costs)), key=lambda position: (costs[position], -position))
    cost_left, chunks = float(sum(costs)), []
    while left:
        share = SHARE * cost_left / workers
        taken = [left.pop()]
        cost = costs[taken[0]]
        while left and (most is None or len(taken) < most) and cost + costs[left[-1]] <= share:
            cost += costs[left[-1]]
            taken.append(left.pop())
        cost_left -= cost
        chunks.append(Chunk(tuple(sorted(taken))))
    return chunks


def training_cost(work: ClientWork) -> float:
    """Samples that a training visits, and one batch more for what every client costs.

    >>> import numpy as np
    >>> training_cost(ClientWork("ann", np.arange(25), 6, 10, 0.1, 0.0, None, 0))
    60.0
    """
    mean_batch = min(len(work.indices) / work.per_epoch, work.batch_size)
    return float(work.batches * mean_batch + work.batch_size)
