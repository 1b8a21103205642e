"""Which classes are trained: only a simulator, which has everybody's labels, can count them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.types import IndexArray

HELD, TRAINED = "classes.held", "classes.trained"


class ClassCounts:
    """Over all rounds and all clients that trained: how many samples of every class a client held, and how many of
    them it trained on. Without selection of samples the two are the same, or of any one share."""

    def __init__(self, labels: Callable[[str], ArrayLike]) -> None:
        """`labels` says those of a client's samples: whole numbers from 0."""
        self._labels = cache(lambda client: np.asarray(labels(client)).astype(np.int32))
        self.held, self.trained = np.zeros((2, 0), dtype=np.int64)
        self.is_whole = True
        """Whether no round is missing: the checkpoint of an older version has counted none."""

    def note(self, client: str, seen: IndexArray) -> None:
        """Count a training of a client on these of its samples."""
        labels = self._labels(client)
        self.held = _with(self.held, np.bincount(labels))
        self.trained = _with(self.trained, np.bincount(labels[seen], minlength=len(self.held)))

    def to_arrays(self) -> dict[str, Any]:
        """What must be remembered over a restart."""
        return {HELD: self.held, TRAINED: self.trained} if self.is_whole else {}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Take up what was remembered."""
        self.is_whole = HELD in arrays
        if self.is_whole:
            self.held, self.trained = arrays[HELD].copy(), arrays[TRAINED].copy()


def _with(counts: IndexArray, more: IndexArray) -> IndexArray:
    """The sum of counts by class, of which either may know more classes."""
    total = np.zeros(max(len(counts), len(more)), dtype=np.int64)
    total[: len(counts)] += counts
    total[: len(more)] += more
    return total
