"""No group of devices is left out, whatever the other policy prefers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.contracts import ClientSelector
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.clients import GroupFloor, Uniform
from fedbalancer.server.clients.participation import speed_groups
from fedbalancer.testing import check_policy


class Fastest(ClientSelector):
    """Takes the fastest, always."""

    def select_clients(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        order = np.argsort(state.ledger.batch_s[available], kind="stable")
        return np.sort(available[order[: setup.clients_per_round]])


def phones(count: int) -> Ledger:
    """The slower, the higher their number."""
    ledger = make_ledger([20] * count)
    return replace(ledger, batch_s_sum=np.linspace(1.0, 9.0, count), batch_s_count=np.ones(count, dtype=np.int32))


def places(policy: GroupFloor, ledger: Ledger, per_round: int, rounds: int, there: IndexArray) -> IndexArray:
    """The number of selections of each client in this many rounds."""
    setup = make_setup(ledger, clients_per_round=per_round)
    state = make_state(ledger, clients=policy.init(setup))
    counts = np.zeros(len(ledger.clients), dtype=np.int64)
    for round in range(rounds):
        state = replace(state, round=round)
        rows = policy.select_clients(setup, state, there)
        assert len(set(rows.tolist())) == len(rows) == min(per_round, len(there))
        assert set(rows.tolist()) <= set(there.tolist())
        counts[rows] += 1
        reports = [make_report(ledger.clients[row]) for row in rows]
        state = replace(state, clients=policy.observe(setup, state, make_result(reports, [])))
    return counts


def test_keeps_the_contract() -> None:
    assert check_policy(GroupFloor(Uniform())) == "clients"


@given(
    count=st.integers(8, 40), per_round=st.integers(1, 8), floor=st.floats(0, 1), groups=st.integers(1, 5),
    rounds=st.integers(1, 30),
)  # fmt: skip
def test_every_group_has_its_floor_at_all_times(
    count: int, per_round: int, floor: float, groups: int, rounds: int
) -> None:
    ledger = phones(count)
    had = places(GroupFloor(Fastest(), floor, groups), ledger, per_round, rounds, np.arange(count))
    group_of = speed_groups(ledger, groups)
    for group in range(groups):
        fair = (group_of == group).mean() * per_round * rounds
        assert had[group_of == group].sum() >= floor * fair - groups  # whole places: each group may wait for one


def test_the_slow_come_where_the_other_policy_would_never_take_them() -> None:
    ledger = phones(20)
    assert places(GroupFloor(Fastest(), floor=0), ledger, 4, 25, np.arange(20))[4:].sum() == 0
    had = places(GroupFloor(Fastest()), ledger, 4, 40, np.arange(20))
    assert had.reshape(4, 5).sum(1).tolist() == [100, 20, 20, 20]  # a fair quarter of 160 is 40


def test_a_group_that_is_away_leaves_its_places_to_others() -> None:
    ledger = phones(20)
    had = places(GroupFloor(Fastest()), ledger, 4, 40, np.arange(15))
    assert had.reshape(4, 5).sum(1).tolist() == [120, 20, 20, 0]


@pytest.mark.parametrize("wrong", [{"floor": -0.1}, {"floor": 1.5}, {"floor": np.nan}, {"groups": 0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="must be"):
        GroupFloor(Uniform(), **wrong)  # type: ignore[arg-type]


def test_the_modifier_keeps_the_methods_own_choice_inside() -> None:
    assert fb.method("fedbalancer+groupfloor").clients == GroupFloor(fb.method("fedbalancer").clients)
