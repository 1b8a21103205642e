"""A million clients, made once."""

from __future__ import annotations

import numpy as np
import pytest

from fedbalancer.core.types import Ledger


@pytest.fixture(scope="session")
def million() -> Ledger:
    count = 1_000_000
    rng = np.random.default_rng(0)
    size, network_s = rng.integers(1, 500, count), rng.uniform(1, 60, count)
    return Ledger.start(tuple(map(str, range(count))), size, network_s, rng.uniform(0.1, 2, (count, 1)))
