"""The tensors inside a flat update, and what all compressors ask of their values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedbalancer.types import Layout, Weights

LARGEST = 1e24
"""Far beyond any update that means something, and far enough from the end of float32 that neither a rotation nor a
scaling of a compressor gets there: values are cut off here, so that what is decoded is always finite."""


def parameters(layout: Layout) -> int:
    """How many numbers a vector of this layout holds.

    >>> parameters((("w", (4, 3)), ("b", (4,))))
    16
    """
    return sum(math.prod(shape) for _, shape in layout)


def split(update: Weights, layout: Layout) -> Iterator[tuple[tuple[int, ...], Weights]]:
    """Shape and values (a view) of every tensor, in order."""
    start = 0
    for _, shape in layout:
        size = math.prod(shape)
        yield shape, update[start : start + size]
        start += size


def bounded(values: Weights) -> Weights:
    """A copy with every value within `LARGEST`."""
    return np.clip(values, np.float32(-LARGEST), np.float32(LARGEST))


def wire(values: Weights) -> bytes:
    """Values as they travel: float32, little-endian."""
    return values.astype("<f4", copy=False).tobytes()


def from_wire(payload: bytes) -> Weights:
    """The other way round."""
    return np.frombuffer(payload, dtype="<f4").astype(np.float32)


def require_bytes(payload: bytes, promised: int) -> None:
    """What comes from a network may be cut off; it must not be taken for an update."""
    if len(payload) != promised:
        raise ValueError(f"an update of {len(payload)} bytes, where {promised} were promised")
