"""Sorted positions in few bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress.wire import decode_positions, encode_positions, positions_bytes


@given(st.integers(1, 5000).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_positions_come_back_from_as_many_bytes_as_promised(drawn: tuple[int, set[int]]) -> None:
    size, chosen = drawn
    positions = np.array(sorted(chosen), dtype=np.int64)
    payload = encode_positions(positions, size)
    assert len(payload) == positions_bytes(len(positions), size)
    assert decode_positions(payload, len(positions), size).tolist() == positions.tolist()


@pytest.mark.parametrize(("count", "size"), [(66_037, 6_603_710), (16_025, 1_602_502), (1, 10**9), (500, 8000)])
def test_they_take_little_more_than_the_least_possible(count: int, size: int) -> None:
    bits = 8 * positions_bytes(count, size)
    least = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)
    assert least <= bits <= least + 0.6 * count + 16
    assert bits <= count * (2 + math.log2(size / count)) + 16
    assert bits < count * math.ceil(math.log2(size)) + 16


def test_extremes_come_back() -> None:
    for positions in ([0], [999], [0, 999], list(range(1000))):
        payload = encode_positions(np.array(positions), 1000)
        assert decode_positions(payload, len(positions), 1000).tolist() == positions


@pytest.mark.parametrize("payload", [b"\x00" * 3, b"\xff" * 3])
def test_bytes_that_are_no_positions_are_refused(payload: bytes) -> None:
    assert positions_bytes(3, 100) == len(payload)
    with pytest.raises(ValueError, match="positions, where 3 were promised"):
        decode_positions(payload, 3, 100)


def test_a_position_outside_is_refused() -> None:
    inside = bytearray(encode_positions(np.array([0, 50, 96]), 97))
    assert decode_positions(bytes(inside), 3, 97).tolist() == [0, 50, 96]
    inside[0] = inside[1] = 0xFF
    with pytest.raises(ValueError, match="in a vector of 97"):
        decode_positions(bytes(inside), 3, 97)
