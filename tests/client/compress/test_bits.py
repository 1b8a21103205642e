"""Whole numbers of a few bits each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress.wire import packed, packed_bytes, unpacked


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
