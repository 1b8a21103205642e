"""Sorted positions in few bits, as many as their number and range say (P. Elias, "Efficient Storage and Retrieval by
Content and Address of Static Files", J. ACM 1974; R. Fano, 1971).

The low b = floor(log2(size / count)) bits of each position travel as they are. The rest, which never decreases, travels
as a row of bits in which the i-th one stands at place rest + i. Together that is at most 2 + log2(size / count) bits a
position; where few of many are sent, no code of fixed length needs more than about half a bit less. Plain numbers
take log2(size) each.
"""

from __future__ import annotations

import numpy as np

from fedbalancer.client.compress.wire import packed, packed_bytes, unpacked
from fedbalancer.core.types import IndexArray


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
