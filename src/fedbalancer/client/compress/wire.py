"""The wire format of numbers, and updates that travel unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import Compressor
from fedbalancer.core.types import IndexArray, Layout, Weights

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


def positions_bytes(count: int, size: int) -> int:
    """Bytes of `count` different positions below `size`.

    >>> positions_bytes(66_037, 6_603_710)  # 8.6 bits each, where plain numbers have 23
    70681
    """
    if not count:
        return 0
    low = _low_bits(count, size)
    return packed_bytes(count, low) + packed_bytes(_places(count, size, low), 1)


def encode_positions(positions: IndexArray, size: int) -> bytes:
    """Different positions below `size`, in rising order."""
    count = len(positions)
    if not count:
        return b""
    low = _low_bits(count, size)
    row = np.zeros(_places(count, size, low), dtype=np.uint8)
    row[(positions >> low) + np.arange(count)] = 1
    return packed(positions.astype(np.uint32), low) + np.packbits(row).tobytes()


def decode_positions(payload: bytes, count: int, size: int) -> IndexArray:
    """The positions again; a ValueError where the bytes are none."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    low = _low_bits(count, size)
    border = packed_bytes(count, low)
    row = np.unpackbits(np.frombuffer(payload[border:], dtype=np.uint8), count=_places(count, size, low))
    ones = np.flatnonzero(row)
    if len(ones) != count:
        raise ValueError(f"{len(ones)} positions, where {count} were promised")
    positions = (ones - np.arange(count) << low) + unpacked(payload[:border], count, low, np.uint32)
    if positions.max() >= size:
        raise ValueError(f"a position {positions.max()} in a vector of {size}")
    return np.asarray(positions, dtype=np.int64)


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _places(count: int, size: int, low: int) -> int:
    """The last one can stand at the largest rest plus count - 1."""
    return ((size - 1) >> low) + count


@dataclass(frozen=True)
class NoCompression(Compressor):
    """Four bytes per parameter, nothing lost."""

    is_identity: ClassVar[bool] = True

    def encoded_bytes(self, layout: Layout) -> int:
        return layout.wire_bytes

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        return from_wire(payload)
