"""Whole numbers of a few bits each, without gaps between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
