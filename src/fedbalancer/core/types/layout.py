"""Array types, the layout of a model in one vector, parts of it, and checks of named arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]
CountArray = NDArray[np.int32]
Weights = NDArray[np.float32]
Arrays = Mapping[str, Weights]
"""Named arrays of a method: what a client keeps, receives or sends besides the model."""
Shapes = Mapping[str, tuple[int, ...]]
"""Names and shapes of arrays."""


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


Outside = Literal["absent", "frozen", "local", "dropped"]
"""What the parameters outside a client's part are: absent (zero, as in a smaller model), frozen (as received), local
(trained, but kept on the client), or dropped (trained, but not sent)."""


@dataclass(frozen=True, eq=False)
class Part:
    """The part of the model that a client trains and sends.

    Args:
        mask: Whether each parameter belongs to the part.
        outside: What the other parameters are.
        batch_share: Seconds of a batch as a share of the whole model's.
    """

    mask: NDArray[np.bool_]
    outside: Outside = "absent"
    batch_share: float = 1.0


MAX_VALUE = 1e6
"""Largest absolute value in an array of a report."""


def find_array_fault(arrays: Mapping[str, Any], shapes: Shapes) -> str | None:
    """Return what is wrong with named arrays: their names, types, shapes or values. None if they are right.

    Args:
        arrays: The arrays.
        shapes: Declared names and shapes.

    Example:
        >>> find_array_fault({"c": np.zeros(2, dtype=np.float32)}, {"c": (3,)})
        "array 'c' of shape (2,), which must be (3,)"
    """
    if fault := find_name_fault(arrays, shapes):
        return fault
    for name, shape in shapes.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            return f"array {name!r} of {kind}, which must be float32"
        if array.shape != tuple(shape):
            return f"array {name!r} of shape {array.shape}, which must be {tuple(shape)}"
        most = float(np.abs(array).max(initial=0.0))
        if not np.isfinite(most):
            return f"array {name!r} with a value that is not a finite number"
        if most > MAX_VALUE:
            return f"{most:g} in array {name!r}, which must be at most {MAX_VALUE:g}"
    return None


def find_name_fault(names: Iterable[Any], shapes: Shapes) -> str | None:
    """Return which array is missing or not declared. None if the names are right.

    Args:
        names: Names of the arrays.
        shapes: Declared names and shapes.

    Example:
        >>> find_name_fault([], {"c": (3,)}), find_name_fault(["c", "d"], {"c": (3,)})
        ("no array 'c', which is declared", "array 'd', which is not declared (declared: c)")
    """
    given = set(names)
    if missing := sorted(set(shapes) - given):
        return f"no array {missing[0]!r}, which is declared"
    if unknown := sorted(given - set(shapes), key=str):
        declared = ", ".join(sorted(shapes)) or "none"
        return f"array {str(unknown[0])[:50]!r}, which is not declared (declared: {declared})"
    return None


def check_shapes(owner: str, shapes: Any) -> Shapes:
    """Return declared names and shapes.

    Args:
        owner: Who declares them, for the message.
        shapes: What the policy returned.

    Raises:
        BadSetting: If a name is not an identifier or a shape is not a tuple of whole numbers.
    """
    if not isinstance(shapes, Mapping):
        raise BadSetting(f"{owner} returned {type(shapes).__name__}; it must map names to shapes, as in {{'c': (10,)}}")
    for name, shape in shapes.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 50:
            raise BadSetting(f"{owner} names an array {name!r}; a name must be a word of at most 50 characters")
        sizes = shape if isinstance(shape, tuple) else (None,)
        if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
            raise BadSetting(f"{owner} gives array {name!r} the shape {shape!r}; it must be a tuple such as (10,)")
    return shapes


def count_bytes(shapes: Shapes) -> int:
    """Return the bytes of float32 arrays on the network.

    Args:
        shapes: Names and shapes.

    Example:
        >>> count_bytes({"c": (2, 3), "n": ()})
        28
    """
    return 4 * sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())
