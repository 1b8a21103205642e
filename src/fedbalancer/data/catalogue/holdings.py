"""Who has what: how many samples of which label every client has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.task import Task
from fedbalancer.core.types import IndexArray

OTHER = "other"


@dataclass(frozen=True, eq=False)
class Holdings:
    """A row per client, the largest first. `counts` has a column per label of `labels`, the last of which may stand for
    all the others; `distinct` is how many different labels a client has. Labels of several parts (the tokens of a
    sequence) are counted one by one. Labels that are no classes (floats) are not counted: then there are none."""

    title: str
    clients: tuple[str, ...]
    sizes: IndexArray
    test_samples: int
    labels: tuple[str, ...]
    all_labels: int
    counts: IndexArray
    distinct: IndexArray

    def spaced(self, most: int) -> IndexArray:
        """Rows of at most so many clients, evenly from the largest to the smallest. Single ones, as means over several
        would look like clients that have every label."""
        return np.unique(np.linspace(0, len(self.clients) - 1, most).astype(np.int64))


def holdings(task: Task, most_labels: int = 20) -> Holdings:
    """Count the labels of all clients; beyond `most_labels` the rarest are put together."""
    tallies = {client: _tally(samples[1]) for client, samples in task.clients.items()}
    sizes = task.sizes
    order = sorted(sizes, key=lambda client: (-sizes[client], client))
    total: Counter[int] = Counter()
    for tally in tallies.values():
        total.update(tally)
    shown, rest = _shown(total, most_labels)
    columns = [[tallies[client].get(label, 0) for label in shown] for client in order]
    counts = np.array(columns, dtype=np.int64).reshape(len(order), len(shown))
    if rest:
        other = np.array([sum(tallies[client].values()) for client in order]) - counts.sum(axis=1)
        counts = np.column_stack([counts, other])
    return Holdings(
        title=f"{task.name} ({task.variant})" if task.variant else task.name,
        clients=tuple(order),
        sizes=np.array([sizes[client] for client in order], dtype=np.int64),
        test_samples=len(task.test[1]),
        labels=(*map(str, shown), *((OTHER,) if rest else ())),
        all_labels=len(total),
        counts=counts,
        distinct=np.array([len(tallies[client]) for client in order], dtype=np.int64),
    )


def _shown(total: Counter[int], most: int) -> tuple[list[int], bool]:
    """The labels that get a column of their own, in order, and whether others are left."""
    if len(total) <= most:
        return sorted(total), False
    return sorted(label for label, _ in total.most_common(most - 1)), True


def _tally(labels: NDArray[Any]) -> dict[int, int]:
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        return {}
    values, counts = np.unique(array, return_counts=True)
    return dict(zip(_ints(values), _ints(counts), strict=True))


def _ints(values: Iterable[Any]) -> list[int]:
    return [int(value) for value in values]
