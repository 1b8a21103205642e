"""The memory of simulated clients between rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from builders import make_ledger, same
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.round import ClientMemory
from fedbalancer.simulation.state import Memories

COUNT = 5
losses = st.lists(st.floats(0, 9) | st.just(math.nan), max_size=6).map(lambda values: np.array(values, dtype=float))
residuals = st.none() | st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3).map(np.float32)
rows = st.integers(0, COUNT - 1)


uploads = st.lists(st.floats(0, 9), max_size=3).map(tuple)


def puts(row: int, value: Any, residual: Any, uploads_s: Any, batch_s: float) -> Callable[[Memories], None]:
    kept = {"losses": value, "residual": residual, "uploads_s": uploads_s}
    return lambda memory: memory.put(row, replace(memory.of(row).note_batch_s(batch_s), **kept))


changes = st.lists(st.builds(puts, rows, losses, residuals, uploads, st.floats(0.1, 9)))


def fresh() -> Memories:
    return Memories(make_ledger([7] * COUNT, batch_s=[1.0, 2.0, 3.0, 4.0, 5.0]))


@given(changes, changes)
def test_arrays_bring_every_memory_back(ours: list[Any], theirs: list[Any]) -> None:
    memory, other = fresh(), fresh()
    for change in ours:
        change(memory)
    for change in theirs:
        change(other)
    arrays = memory.to_arrays()
    other.load(arrays)
    assert same(dict(other), dict(memory))
    assert same(other.to_arrays(), arrays)


def test_a_run_without_forecasts_saves_no_uploads() -> None:
    memory = fresh()
    memory.put(1, memory.of(1).note_batch_s(2.0))
    assert not [name for name in memory.to_arrays() if "upload" in name]
    memory.put(1, memory.of(1).note_upload_s(3.0))
    assert memory.to_arrays()["upload_s"].tolist() == [3.0]


def test_a_restored_list_does_not_share_memory_with_the_snapshot() -> None:
    memory = fresh()
    memory.put(0, ClientMemory(np.array([1.0, 2.0]), 1.0, 1, np.ones(3, dtype=np.float32)))
    arrays = memory.to_arrays()
    memory.load(arrays)
    for name, array in arrays.items():
        array[:] = 0
        assert same(memory["c0"].losses, np.array([1.0, 2.0])), name
        assert same(memory["c0"].residual, np.ones(3, dtype=np.float32)), name
        assert (memory["c0"].batch_s_sum, memory["c0"].batch_s_count) == (1.0, 1), name


def test_the_mean_latency_covers_every_round() -> None:
    memory = fresh()
    for row, batch_s in ((0, 2.0), (2, 6.0), (2, 9.0)):
        memory.put(row, memory.of(row).note_batch_s(batch_s))
    assert [memory[client].batch_s() for client in memory] == [1.5, 2.0, 6.0, 4.0, 5.0]


def test_what_a_client_has_not_made_is_none() -> None:
    memory = fresh()
    memory.put(3, ClientMemory(np.zeros(7), 1.0, 1, np.zeros(2, dtype=np.float32)))
    assert [one.losses is None for one in memory.values()] == [True, True, True, False, True]
    assert [one.residual is None for one in memory.values()] == [True, True, True, False, True]
    memory.put(3, replace(memory.of(3), residual=None))
    assert memory["c3"].residual is None


def test_the_ledger_that_it_began_with_is_left_alone() -> None:
    ledger = make_ledger([7] * COUNT)
    memory = Memories(ledger)
    for row in range(COUNT):
        memory.put(row, memory.of(row).note_batch_s(9.0))
    assert ledger.batch_s.tolist() == [1.0] * COUNT
