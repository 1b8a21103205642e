"""The parts of Oort's scheme that policies share."""

from __future__ import annotations

import numpy as np
import pytest
from builders import heard, make_ledger
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import IndexArray
from fedbalancer.server.clients.selection import exploit_count, next_exploration, select_over_cutoff

scores = st.floats(0, 10) | st.sampled_from([0.0, 1.0, 2.0])


@given(st.data())
def test_the_clients_over_the_cut_off_are_those_of_a_full_sort(data: st.DataObject) -> None:
    base = np.array(data.draw(st.lists(scores, min_size=1, max_size=60)))
    factors = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(base), max_size=len(base))))
    count, cutoff = data.draw(st.integers(1, 70)), data.draw(st.floats(0, 1))
    looked: list[IndexArray] = []

    def penalty(positions: IndexArray) -> np.ndarray:
        looked.append(positions)
        return factors[positions]

    rows, found = select_over_cutoff(base, penalty, count, cutoff)
    full = base * factors
    limit = cutoff * sorted(full, reverse=True)[min(count, len(full) - 1)]
    assert rows.tolist() == np.flatnonzero(full >= limit).tolist()
    assert found.tolist() == full[rows].tolist()


def test_looks_at_the_durations_of_few() -> None:
    rng = np.random.default_rng(0)
    base, factors = rng.random(100_000), rng.uniform(0.5, 1, 100_000)
    asked = 0

    def penalty(positions: IndexArray) -> np.ndarray:
        nonlocal asked
        asked += len(positions)
        return factors[positions]

    select_over_cutoff(base, penalty, 100, 0.95)
    assert asked < 20_000


@given(st.integers(0, 50), st.floats(0, 1), st.integers(0, 60), st.integers(0, 60))
def test_exploitation_takes_its_share_and_what_exploration_lacks(
    count: int, exploration: float, known: int, unknown: int
) -> None:
    found = exploit_count(count, exploration, known, unknown)
    assert 0 <= found <= known
    share = int(count * (1 - exploration) + 1e-9)
    if known >= count and unknown >= count:
        assert found == share
    if known + unknown >= count:
        assert count - found <= unknown


@pytest.mark.parametrize(("exploration", "wanted"), [(0.9, 1), (0.8, 2), (0.7, 3), (0.2, 8)])
def test_a_round_share_is_not_lost_to_rounding(exploration: float, wanted: int) -> None:
    assert exploit_count(10, exploration, known=99, unknown=99) == wanted


def test_exploration_shrinks_to_its_least_and_ends_when_all_are_known() -> None:
    some, everybody = heard(make_ledger(), range(5)), heard(make_ledger(), range(6))
    path = [0.9]
    for _ in range(100):
        path.append(next_exploration(path[-1], 0.98, 0.2, some))
    assert path[:3] == pytest.approx([0.9, 0.882, 0.86436])
    assert 0.2 * 0.98 < path[-1] <= 0.2
    assert path[-1] == path[-2]
    assert next_exploration(0.9, 0.98, 0.2, everybody) == 0.0
