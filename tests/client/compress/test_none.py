"""Updates travel as they are."""

from __future__ import annotations

import numpy as np

from fedbalancer.client.compress import NoCompression

LAYOUT = (("weight", (2, 2)),)


def test_nothing_is_lost_and_nothing_is_saved() -> None:
    update = np.array([1.0, -2.0, 0.5, 3.0], dtype=np.float32)
    found = NoCompression().apply(update, LAYOUT, np.random.default_rng(0))
    assert found.tobytes() == update.tobytes()
    assert NoCompression().encoded_bytes(LAYOUT, 16) == 16
