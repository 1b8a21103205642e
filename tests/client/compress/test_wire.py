"""How values travel."""

from __future__ import annotations

import numpy as np
import pytest

from fedbalancer.client.compress.wire import LARGEST, bounded, from_wire, require_bytes, wire


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
