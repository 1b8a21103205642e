"""How numbers travel: values as float32, whole numbers in a few bits each, without gaps between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import Weights

LARGEST = 1e24
"""Far beyond any update that means something, and far enough from the end of float32 that neither a rotation nor a
scaling of a compressor gets there: values are cut off here, so that what is decoded is always finite."""


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


def packed_bytes(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits.

    >>> packed_bytes(3, 5)
    2
    """
    return -(-count * width // 8)


def packed(numbers: NDArray[Any], width: int) -> bytes:
    """The low `width` bits of unsigned numbers: first all lowest bits, then all second lowest, and so on. Rows of
    equal bits are many times faster to make than numbers side by side, and as long."""
    if width == 8 * numbers.itemsize:
        return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
    planes = np.empty((width, len(numbers)), dtype=np.uint8)
    for bit, plane in enumerate(planes):
        plane[:] = (numbers >> numbers.dtype.type(bit)) & numbers.dtype.type(1)
    return np.packbits(planes).tobytes()


def unpacked(payload: bytes, count: int, width: int, dtype: Any) -> NDArray[Any]:
    """The numbers that `packed` was given."""
    if width == 8 * np.dtype(dtype).itemsize:
        return np.frombuffer(payload, dtype=np.dtype(dtype).newbyteorder("<")).astype(dtype)
    planes = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), count=count * width).reshape(width, count)
    numbers = np.zeros(count, dtype=dtype)
    for bit, plane in enumerate(planes):
        numbers |= plane.astype(dtype, copy=False) << numbers.dtype.type(bit)
    return numbers
