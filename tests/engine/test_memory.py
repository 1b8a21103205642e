"""What every simulated client keeps between rounds."""

from __future__ import annotations

import math

import numpy as np
from builders import names, same
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.engine.memory import ClientMemory, from_arrays, to_arrays

losses = st.lists(st.floats(0, 9) | st.just(math.nan), max_size=6).map(lambda values: np.array(values, dtype=float))
memories = st.builds(ClientMemory, st.none() | losses, st.floats(0.1, 100), st.integers(1, 50))


@given(st.lists(memories, max_size=6))
def test_arrays_bring_every_memory_back(values: list[ClientMemory]) -> None:
    clients = names(len(values))
    before = dict(zip(clients, values, strict=True))
    arrays = to_arrays(before)
    assert same(from_arrays(clients, arrays), before)
    assert same(to_arrays(from_arrays(clients, arrays)), arrays)


def test_a_restored_list_does_not_share_memory_with_the_snapshot() -> None:
    arrays = to_arrays({"ann": ClientMemory(np.array([1.0, 2.0]), 1.0, 1)})
    restored = from_arrays(("ann",), arrays)["ann"].losses
    assert restored is not None
    assert not np.shares_memory(restored, arrays["losses"])


def test_the_mean_latency_covers_every_round() -> None:
    memory = ClientMemory(None, 10.0, 10).timed(2.0).timed(3.0)
    assert memory.batch_s == 15.0 / 12
