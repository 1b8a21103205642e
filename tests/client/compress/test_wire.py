"""How values travel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress.wire import (
    LARGEST,
    bounded,
    from_wire,
    packed,
    packed_bytes,
    require_bytes,
    unpacked,
    wire,
)


def test_only_absurd_values_are_cut_off() -> None:
    update = np.array([-3e38, -1e20, 0, 1e-45, 2e24], dtype=np.float32)
    assert bounded(update).tolist() == [np.float32(-LARGEST), *update[1:4].tolist(), np.float32(LARGEST)]
    assert update[0] < -1e38


def test_the_wire_is_little_endian_float32() -> None:
    assert wire(np.array([1.0, -2.0], dtype=np.float32)) == bytes.fromhex("0000803f000000c0")
    assert from_wire(bytes.fromhex("0000803f000000c0")).tolist() == [1.0, -2.0]


def test_a_length_that_was_not_promised_is_refused() -> None:
    require_bytes(b"1234", 4)
    with pytest.raises(ValueError, match="an update of 3 bytes, where 4 were promised"):
        require_bytes(b"123", 4)


@given(st.data(), st.sampled_from([np.uint8, np.uint16, np.uint32]))
def test_numbers_come_back_and_take_no_more_than_their_bits(data: st.DataObject, dtype: type) -> None:
    width = data.draw(st.integers(0, 8 * np.dtype(dtype).itemsize))
    numbers = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40)), dtype=dtype)
    payload = packed(numbers, width)
    assert len(payload) == packed_bytes(len(numbers), width) == -(-len(numbers) * width // 8)
    found = unpacked(payload, len(numbers), width, dtype)
    assert found.dtype == dtype
    assert found.tolist() == numbers.tolist()


def test_higher_bits_are_left_out() -> None:
    assert unpacked(packed(np.array([255, 6], dtype=np.uint8), 3), 2, 3, np.uint8).tolist() == [7, 6]


@pytest.mark.parametrize(("count", "width", "size"), [(8, 1, 1), (9, 1, 2), (3, 5, 2), (0, 8, 0), (5, 0, 0)])
def test_bytes(count: int, width: int, size: int) -> None:
    assert packed_bytes(count, width) == size
