"""The wire format of numbers, and updates that travel unchanged.

Sorted positions use Elias-Fano coding (P. Elias, "Efficient Storage and Retrieval by Content and Address of Static
Files", J. ACM 1974; R. Fano, 1971). The low b = floor(log2(size / count)) bits of each position are stored as they are.
The rest never decreases and is stored as a row of bits in which the i-th one is at place rest + i. This takes at most
2 + log2(size / count) bits per position; plain numbers take log2(size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.contracts import Compressor
from fedbalancer.core.types import IndexArray, Layout, Weights

LARGEST = 1e24
"""Values are clipped to this, far below the largest float32, so that decoded values are finite after any rotation or
scaling."""


def bounded(values: Weights) -> Weights:
    """Return a copy with every value within `LARGEST`."""
    return np.clip(values, np.float32(-LARGEST), np.float32(LARGEST))


def wire(values: Weights) -> bytes:
    """Return values as little-endian float32 bytes."""
    return values.astype("<f4", copy=False).tobytes()


def from_wire(payload: bytes) -> Weights:
    """Return the values in little-endian float32 bytes."""
    return np.frombuffer(payload, dtype="<f4").astype(np.float32)


def require_bytes(payload: bytes, promised: int) -> None:
    """Check the length of a payload: it may have been truncated on the network.

    Raises:
        ValueError: If the length is not `promised`.
    """
    if len(payload) != promised:
        raise ValueError(f"an update of {len(payload)} bytes instead of {promised}")


def packed_bytes(count: int, width: int) -> int:
    """Return the bytes of `count` numbers of `width` bits.

    Example:
        >>> packed_bytes(3, 5)
        2
    """
    return -(-count * width // 8)


def pack(numbers: NDArray[Any], width: int) -> bytes:
    """Return the low `width` bits of unsigned numbers: first all lowest bits, then all second lowest, and so on.

    Rows of equal bits are many times faster to produce than numbers side by side, and equally long.

    Args:
        numbers: Unsigned numbers.
        width: Bits per number.
    """
    if width == 8 * numbers.itemsize:
        return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
    planes = np.empty((width, len(numbers)), dtype=np.uint8)
    for bit, plane in enumerate(planes):
        plane[:] = (numbers >> numbers.dtype.type(bit)) & numbers.dtype.type(1)
    return np.packbits(planes).tobytes()


def unpack(payload: bytes, count: int, width: int, dtype: Any) -> NDArray[Any]:
    """Return the numbers that `pack` encoded."""
    if width == 8 * np.dtype(dtype).itemsize:
        return np.frombuffer(payload, dtype=np.dtype(dtype).newbyteorder("<")).astype(dtype)
    planes = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), count=count * width).reshape(width, count)
    numbers = np.zeros(count, dtype=dtype)
    for bit, plane in enumerate(planes):
        numbers |= plane.astype(dtype, copy=False) << numbers.dtype.type(bit)
    return numbers


def positions_bytes(count: int, size: int) -> int:
    """Return the bytes of `count` different positions below `size`.

    Example:
        >>> positions_bytes(66_037, 6_603_710)  # 8.6 bits each; plain numbers take 23
        70681
    """
    if not count:
        return 0
    low = _low_bits(count, size)
    return packed_bytes(count, low) + packed_bytes(_places(count, size, low), 1)


def encode_positions(positions: IndexArray, size: int) -> bytes:
    """Encode different positions below `size`, in ascending order."""
    count = len(positions)
    if not count:
        return b""
    low = _low_bits(count, size)
    row = np.zeros(_places(count, size, low), dtype=np.uint8)
    row[(positions >> low) + np.arange(count)] = 1
    return pack(positions.astype(np.uint32), low) + np.packbits(row).tobytes()


def decode_positions(payload: bytes, count: int, size: int) -> IndexArray:
    """Decode positions.

    Raises:
        ValueError: If the bytes are invalid.
    """
    if not count:
        return np.zeros(0, dtype=np.int64)
    low = _low_bits(count, size)
    border = packed_bytes(count, low)
    row = np.unpackbits(np.frombuffer(payload[border:], dtype=np.uint8), count=_places(count, size, low))
    ones = np.flatnonzero(row)
    if len(ones) != count:
        raise ValueError(f"{len(ones)} positions instead of {count}")
    positions = (ones - np.arange(count) << low) + unpack(payload[:border], count, low, np.uint32)
    if positions.max() >= size:
        raise ValueError(f"a position {positions.max()} in a vector of {size}")
    return np.asarray(positions, dtype=np.int64)


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _places(count: int, size: int, low: int) -> int:
    """Return the length of the row of bits: the last one is at most at the largest rest plus count - 1."""
    return ((size - 1) >> low) + count


@dataclass(frozen=True)
class NoCompression(Compressor):
    """Sends four bytes per parameter, without loss.

    Example:
        >>> NoCompression().encoded_bytes(Layout([("w", (2, 3))]))
        24
    """

    is_identity: ClassVar[bool] = True

    def encoded_bytes(self, layout: Layout) -> int:
        return layout.wire_bytes

    def encode(self, update: Weights, layout: Layout, seed: int, residual: Weights | None) -> tuple[bytes, None]:
        return wire(update), None

    def decode(self, payload: bytes, layout: Layout, seed: int) -> Weights:
        require_bytes(payload, self.encoded_bytes(layout))
        return from_wire(payload)
