"""Updates travel as they are."""

from __future__ import annotations

import numpy as np

from fedbalancer.client.compress import NoCompression
from fedbalancer.core.types import Layout

LAYOUT = Layout((("weight", (2, 2)),))


def test_nothing_is_lost_and_nothing_is_saved() -> None:
    update = np.array([1.0, -2.0, 0.5, 3e38], dtype=np.float32)
    payload, residual = NoCompression().encode(update, LAYOUT, 0, None)
    assert NoCompression().decode(payload, LAYOUT, 0).tobytes() == update.tobytes()
    assert residual is None
    assert NoCompression().encoded_bytes(LAYOUT) == 16
