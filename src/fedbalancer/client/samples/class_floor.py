"""Algorithm 1 with a minimum number of samples per class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.client.samples.threshold import OverThreshold, draw_groups, selected_count
from fedbalancer.core.contracts import SampleSelector
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.fields import Share
from fedbalancer.core.types import FloatArray, IndexArray, Order
from fedbalancer.core.wrapping import Wrapping


@dataclass(frozen=True)
class ClassFloor(OverThreshold):
    """Algorithm 1 with a minimum share of every class. This policy is ours.

    Of the samples that Algorithm 1 would select, every class has at least the share `floor` of what a uniform draw
    would give it, rounded up. The others are selected by the threshold. Selection by loss alone drops classes that the
    model has learned, and their losses are never computed again. Labels stay on the client (`of_labels`). Without
    labels, there is one class.

    Args:
        p: Share of samples from OT.
        floor: 0 selects by loss alone, 1 like a uniform draw.
    """

    needs_labels: ClassVar[bool] = True

    floor: Share = 0.5

    def of_labels(self, labels: ArrayLike) -> OfLabels:
        """Return the selector of a client with these labels.

        Raises:
            BadSetting: If the labels are not one class per sample.
        """
        classes = np.asarray(labels)
        if classes.ndim != 1 or classes.dtype.kind not in "iub":
            raise BadSetting("ClassFloor requires one class label per sample")
        return OfLabels(self, classes)

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        return self.of_labels(np.zeros(size, dtype=np.int64)).select(size, losses, batch_s, order, rng)


@dataclass(frozen=True, eq=False)
class OfLabels(Wrapping, SampleSelector):
    """A `ClassFloor` on a client whose labels are known."""

    inner: ClassFloor
    labels: np.ndarray[Any, np.dtype[Any]]

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        wanted = selected_count(size, losses, batch_s, order)
        if wanted is None:
            return None
        if losses is None or wanted == size:
            return np.arange(size)
        kept = self._draw_minimum(wanted, size, rng)
        rest = np.setdiff1d(np.arange(size), kept)
        chosen = draw_groups(losses[rest], order, max(wanted - len(kept), 0), self.inner.p, rng)
        return np.sort(np.concatenate([kept, rest[chosen]]))

    def _draw_minimum(self, wanted: int, size: int, rng: np.random.Generator) -> IndexArray:
        """Draw the minimum number of samples of every class, uniformly."""
        share = self.inner.floor * wanted / size
        groups = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        return np.concatenate([rng.choice(group, math.ceil(share * len(group)), replace=False) for group in groups])
