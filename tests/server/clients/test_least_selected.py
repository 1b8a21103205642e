"""Who was selected least often comes first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.server.clients import LeastSelected
from fedbalancer.server.clients.least_selected import LeastSelectedState
from fedbalancer.testing import check_policy

LEDGER = make_ledger([20] * 10)
SETUP = make_setup(LEDGER, clients_per_round=3)


def test_keeps_the_contract() -> None:
    assert check_policy(LeastSelected()) == "clients"


@given(st.lists(st.integers(0, 3), min_size=10, max_size=10), st.sets(st.integers(0, 9)))
def test_nobody_is_passed_over_for_one_that_was_selected_more_often(times: list[int], there: set[int]) -> None:
    state = make_state(LEDGER, clients=LeastSelectedState(np.array(times, dtype=np.int32)))
    rows = LeastSelected().select_clients(SETUP, state, np.array(sorted(there), dtype=np.int64))
    left = there - set(rows.tolist())
    assert len(rows) == min(3, len(there))
    assert max((times[row] for row in rows), default=0) <= min((times[row] for row in left), default=9)


def test_everybody_takes_a_turn_before_anybody_has_two() -> None:
    policy = LeastSelected()
    state = make_state(LEDGER, clients=policy.init(SETUP))
    seen: Counter[int] = Counter()
    for round in range(1, 21):
        rows = policy.select_clients(SETUP, replace(state, round=round), np.arange(10))
        seen.update(rows.tolist())
        result = make_result([make_report(LEDGER.clients[row]) for row in rows])
        state = replace(state, clients=policy.observe(SETUP, state, result))
        assert max(seen.values()) - min(seen[row] for row in range(10)) <= 1
    assert state.clients.times.tolist() == [seen[row] for row in range(10)]


def test_one_that_is_seldom_there_is_taken_when_it_comes() -> None:
    policy = LeastSelected()
    state = make_state(LEDGER, clients=policy.init(SETUP))
    for round in range(1, 10):
        rows = policy.select_clients(SETUP, replace(state, round=round), np.arange(9))
        result = make_result([make_report(LEDGER.clients[row]) for row in rows])
        state = replace(state, clients=policy.observe(SETUP, state, result))
    assert 9 in policy.select_clients(SETUP, replace(state, round=10), np.arange(10))


def test_clients_that_join_later_come_first() -> None:
    policy, few = LeastSelected(), make_ledger([20] * 4)
    state = make_state(LEDGER, clients=policy.init(make_setup(few)))
    after = policy.observe(SETUP, state, make_result([make_report(client) for client in few.clients]))
    assert after.times.tolist() == [1] * 4 + [0] * 6
