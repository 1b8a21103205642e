"""Array types, the layout of a model in one vector, and parts of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
CountArray = NDArray[np.int32]
Weights = NDArray[np.float32]
Arrays = Mapping[str, Weights]
"""Named arrays of a method: what a client keeps, receives or sends besides the model."""
Shapes = Mapping[str, tuple[int, ...]]
"""Names and shapes of such arrays."""


class Layout(tuple[tuple[str, tuple[int, ...]], ...]):
    """Names and shapes of the tensors in a flat `Weights` vector: a tuple of (name, shape) pairs.

    Example:
        >>> layout = Layout([("weight", (2, 2)), ("bias", (2,))])
        >>> layout.sizes, layout.parameters, layout.wire_bytes
        ((4, 2), 6, 24)
        >>> layout.split(np.arange(6, dtype=np.float32))["bias"].tolist()
        [4.0, 5.0]
    """

    __slots__ = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values in each tensor."""
        return tuple(math.prod(shape) for _, shape in self)

    @property
    def parameters(self) -> int:
        """Number of values in the vector."""
        return sum(self.sizes)

    @property
    def wire_bytes(self) -> int:
        """Bytes of the uncompressed vector on the network (float32)."""
        return 4 * self.parameters

    @property
    def spans(self) -> dict[str, slice]:
        """The slice of the vector that each tensor occupies."""
        ends = accumulate(self.sizes)
        return {name: slice(end - size, end) for (name, _), size, end in zip(self, self.sizes, ends, strict=True)}

    def split(self, vector: Weights) -> dict[str, Weights]:
        """Return the named tensors of a vector, as views of it.

        Args:
            vector: A vector with `parameters` values.

        Raises:
            ValueError: If the vector has another length.
        """
        if len(vector) != self.parameters:
            raise ValueError(f"the layout has {self.parameters} numbers, but there are {len(vector)} weights")
        spans = self.spans
        return {name: vector[spans[name]].reshape(shape) for name, shape in self}

    def join(self, tensors: Mapping[str, NDArray[Any]]) -> Weights:
        """Return the vector of named tensors: the inverse of `split`.

        Args:
            tensors: One array per name of the layout.
        """
        parts = [np.ravel(tensors[name]) for name, _ in self]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts], dtype=np.float32)


Outside = Literal["absent", "frozen", "local"]
"""What the parameters outside a client's part are: absent (zero, as in a smaller model), frozen (as received), or
local (trained, but kept on the client)."""


@dataclass(frozen=True, eq=False)
class Part:
    """The part of the model that a client trains and sends.

    Args:
        mask: Whether each parameter belongs to the part.
        outside: What the other parameters are.
    """

    mask: NDArray[np.bool_]
    outside: Outside = "absent"
