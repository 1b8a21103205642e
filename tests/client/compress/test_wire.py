"""The wire format of numbers, and updates that travel unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress import NoCompression
from fedbalancer.client.compress.wire import (
    LARGEST,
    bounded,
    decode_positions,
    encode_positions,
    from_wire,
    pack,
    packed_bytes,
    positions_bytes,
    require_bytes,
    unpack,
    wire,
)
from fedbalancer.core.types import Layout


def test_only_absurd_values_are_cut_off() -> None:
    update = np.array([-3e38, -1e20, 0, 1e-45, 2e24], dtype=np.float32)
    assert bounded(update).tolist() == [np.float32(-LARGEST), *update[1:4].tolist(), np.float32(LARGEST)]
    assert update[0] < -1e38


def test_the_wire_is_little_endian_float32() -> None:
    assert wire(np.array([1.0, -2.0], dtype=np.float32)) == bytes.fromhex("0000803f000000c0")
    assert from_wire(bytes.fromhex("0000803f000000c0")).tolist() == [1.0, -2.0]


def test_a_length_that_was_not_promised_is_refused() -> None:
    require_bytes(b"1234", 4)
    with pytest.raises(ValueError, match="an update of 3 bytes instead of 4"):
        require_bytes(b"123", 4)


@given(st.data(), st.sampled_from([np.uint8, np.uint16, np.uint32]))
def test_numbers_come_back_and_take_no_more_than_their_bits(data: st.DataObject, dtype: type) -> None:
    width = data.draw(st.integers(0, 8 * np.dtype(dtype).itemsize))
    numbers = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40)), dtype=dtype)
    payload = pack(numbers, width)
    assert len(payload) == packed_bytes(len(numbers), width) == -(-len(numbers) * width // 8)
    found = unpack(payload, len(numbers), width, dtype)
    assert found.dtype == dtype
    assert found.tolist() == numbers.tolist()


def test_higher_bits_are_left_out() -> None:
    assert unpack(pack(np.array([255, 6], dtype=np.uint8), 3), 2, 3, np.uint8).tolist() == [7, 6]


@pytest.mark.parametrize(("count", "width", "size"), [(8, 1, 1), (9, 1, 2), (3, 5, 2), (0, 8, 0), (5, 0, 0)])
def test_bytes(count: int, width: int, size: int) -> None:
    assert packed_bytes(count, width) == size


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
    with pytest.raises(ValueError, match="positions instead of 3"):
        decode_positions(payload, 3, 100)


def test_a_position_outside_is_refused() -> None:
    inside = bytearray(encode_positions(np.array([0, 50, 96]), 97))
    assert decode_positions(bytes(inside), 3, 97).tolist() == [0, 50, 96]
    inside[0] = inside[1] = 0xFF
    with pytest.raises(ValueError, match="in a vector of 97"):
        decode_positions(bytes(inside), 3, 97)


LAYOUT = Layout((("weight", (2, 2)),))


def test_nothing_is_lost_and_nothing_is_saved() -> None:
    update = np.array([1.0, -2.0, 0.5, 3e38], dtype=np.float32)
    payload, residual = NoCompression().encode(update, LAYOUT, 0, None)
    assert NoCompression().decode(payload, LAYOUT, 0).tobytes() == update.tobytes()
    assert residual is None
    assert NoCompression().encoded_bytes(LAYOUT) == 16
