"""Array types, the layout of a weight vector, and a sum that is the same on every Python version."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
CountArray = NDArray[np.int32]
Weights = NDArray[np.float32]


class Layout(tuple[tuple[str, tuple[int, ...]], ...]):
    """Names and shapes of the tensors that a flat `Weights` vector holds: a tuple of (name, shape) pairs, in order.

    >>> layout = Layout([("weight", (2, 2)), ("bias", (2,))])
    >>> layout.sizes, layout.parameters, layout.wire_bytes
    ((4, 2), 6, 24)
    >>> layout.split(np.arange(6, dtype=np.float32))["bias"].tolist()
    [4.0, 5.0]
    """

    __slots__ = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each tensor holds."""
        return tuple(math.prod(shape) for _, shape in self)

    @property
    def parameters(self) -> int:
        """How many numbers the vector holds."""
        return sum(self.sizes)

    @property
    def wire_bytes(self) -> int:
        """Bytes of the whole vector when it travels as it is: float32."""
        return 4 * self.parameters

    @property
    def spans(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        ends = accumulate(self.sizes)
        return {name: slice(end - size, end) for (name, _), size, end in zip(self, self.sizes, ends, strict=True)}

    def split(self, vector: Weights) -> dict[str, Weights]:
        """The named tensors in a vector, as views of it."""
        if len(vector) != self.parameters:
            raise ValueError(f"the layout has {self.parameters} numbers, but there are {len(vector)} weights")
        spans = self.spans
        return {name: vector[spans[name]].reshape(shape) for name, shape in self}

    def join(self, tensors: Mapping[str, NDArray[Any]]) -> Weights:
        """The vector of the named tensors, whatever their order: the inverse of `split`."""
        parts = [np.ravel(tensors[name]) for name, _ in self]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts], dtype=np.float32)


def total(values: Iterable[float]) -> float:
    """The values added one by one. The built-in `sum` makes up for rounding since Python 3.12: with it the last digits
    of a run would hang on the version.

    >>> total([1e16, 1.0, -1e16])
    0.0
    """
    added = 0.0
    for value in values:
        added += value
    return added
