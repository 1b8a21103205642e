"""Algorithm 1 with a floor under every class of the client."""

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
    """Ours: of the samples that Algorithm 1 would take, every class has at least the share `floor` of what it would
    have if they were drawn from all samples alike, rounded up; the others are chosen by the threshold, as there.

    Selection by loss leaves out whole classes once the model knows them, and nobody looks at their losses again. The
    floor keeps them in; by the loss alone with a floor of 0, like a draw from all samples with 1. Labels stay
    where they are: whoever carries a client gives them to `of_labels`. Without, there is one class.
    """

    needs_labels: ClassVar[bool] = True

    floor: Share = 0.5

    def of_labels(self, labels: ArrayLike) -> OfLabels:
        """The choice of a client whose samples have these labels."""
        classes = np.asarray(labels)
        if classes.ndim != 1 or classes.dtype.kind not in "iub":
            raise BadSetting("ClassFloor needs labels that are one class a sample")
        return OfLabels(self, classes)

    def select(
        self, size: int, losses: FloatArray | None, batch_s: float, order: Order, rng: np.random.Generator
    ) -> IndexArray | None:
        return self.of_labels(np.zeros(size, dtype=np.int64)).select(size, losses, batch_s, order, rng)


@dataclass(frozen=True, eq=False)
class OfLabels(Wrapping, SampleSelector):
    """A `ClassFloor` on a client that knows its labels."""

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
        kept = self._floors(wanted, size, rng)
        rest = np.setdiff1d(np.arange(size), kept)
        chosen = draw_groups(losses[rest], order, max(wanted - len(kept), 0), self.inner.p, rng)
        return np.sort(np.concatenate([kept, rest[chosen]]))

    def _floors(self, wanted: int, size: int, rng: np.random.Generator) -> IndexArray:
        """Of every class as many as its floor, uniformly."""
        share = self.inner.floor * wanted / size
        groups = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        return np.concatenate([rng.choice(group, math.ceil(share * len(group)), replace=False) for group in groups])
