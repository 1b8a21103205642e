"""Checks of the named arrays that a method keeps on clients or sends besides the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Shapes

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
    if unexpected := sorted(set(arrays) ^ set(shapes), key=str):
        wanted = ", ".join(sorted(shapes)) or "none"
        return f"arrays that differ in {str(unexpected[0])[:50]!r} from the declared ones ({wanted})"
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
