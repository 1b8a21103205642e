"""The memory of a client between rounds."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.round import ClientMemory, update_losses


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.data())
def test_only_seen_entries_change_and_the_old_list_is_left_alone(losses: list[float], data: st.DataObject) -> None:
    seen = np.array(sorted(data.draw(st.sets(st.integers(0, len(losses) - 1)))), dtype=np.int64)
    fresh = np.arange(100.0, 100.0 + len(seen))
    old = np.array(losses)
    found = update_losses(old, len(losses), seen, fresh)
    assert old.tolist() == losses
    assert found[seen].tolist() == fresh.tolist()
    others = np.setdiff1d(np.arange(len(losses)), seen)
    assert found[others].tolist() == old[others].tolist()


def test_a_new_list_knows_only_what_was_seen() -> None:
    found = update_losses(None, 4, np.array([0, 2]), np.array([1.0, 3.0]))
    assert found[[0, 2]].tolist() == [1.0, 3.0]
    assert np.isnan(found[[1, 3]]).all()


def test_the_mean_latency_is_of_all_that_were_seen() -> None:
    assert ClientMemory().batch_s(7.0) == 7.0
    assert math.isnan(ClientMemory().batch_s())
    assert ClientMemory().note_batch_s(1.0).note_batch_s(2.0).batch_s(7.0) == 1.5
