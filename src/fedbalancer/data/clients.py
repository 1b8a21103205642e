"""Many clients' samples in one array, cut where one client ends and the next begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.tasks.task import Samples


@dataclass(frozen=True, eq=False)
class SlicedClients(Mapping[str, Samples]):
    """Client k has the rows after those of the clients before it; nothing is copied: memory-mapped arrays stay shared.

    Such clients are not looked at when a task is made: whoever wrote the arrays has checked them.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    features: NDArray[Any]
    labels: NDArray[Any]
    _starts: dict[str, tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ends = np.cumsum(self.lengths).tolist()
        spans = {name: (end - length, end) for name, length, end in zip(self.names, self.lengths, ends, strict=True)}
        object.__setattr__(self, "_starts", spans)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.names, self.lengths, strict=True))

    def __getitem__(self, client: str) -> Samples:
        start, end = self._starts[client]
        return self.features[start:end], self.labels[start:end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def joined(users: Mapping[str, Samples] | Sequence[tuple[str, Samples]]) -> tuple[list[str], list[int], Any, Any]:
    """Names, lengths, features and labels of users, side by side: what `SlicedClients` takes."""
    pairs = list(users.items()) if isinstance(users, Mapping) else list(users)
    features = np.concatenate([np.asarray(samples[0]) for _, samples in pairs])
    labels = np.concatenate([np.asarray(samples[1]) for _, samples in pairs])
    return [name for name, _ in pairs], [len(samples[1]) for _, samples in pairs], features, labels
