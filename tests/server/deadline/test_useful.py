"""The deadline with the most useful work per second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.server.deadline import UsefulWork
from fedbalancer.server.deadline.useful import UsefulState, useful_deadline
from fedbalancer.testing import check_policy

seconds = st.floats(0.05, 500)


def test_keeps_the_contract() -> None:
    assert check_policy(UsefulWork()) == "deadline"


@settings(max_examples=50)
@given(
    st.lists(st.tuples(seconds, st.floats(0.01, 20), st.integers(1, 400)), min_size=1, max_size=12),
    st.floats(0, 60), st.floats(0.05, 0.95),
)  # fmt: skip
def test_no_other_deadline_is_much_better(
    clients: list[tuple[float, float, int]], overhead_s: float, gamma: float
) -> None:
    network_s, batch_s, most = (np.array(column, dtype=float) for column in zip(*clients, strict=True))

    def rate(deadline_s: float) -> float:
        done = np.minimum((deadline_s - network_s) / batch_s + 1e-9, most)
        return float((np.maximum(done, 0)[done >= 1] ** gamma).sum() / (deadline_s + overhead_s))

    found = useful_deadline(network_s, batch_s, most, overhead_s, gamma)
    longest = float((network_s + batch_s * most).max())
    assert (network_s + batch_s).min() <= found <= longest + 1e-6
    assert rate(found) >= 0.97 * max(rate(t) for t in np.linspace(0.01, 1.2 * longest, 2000))


def test_rounds_are_longer_where_they_cost_more_anyway_and_where_batches_keep_their_worth() -> None:
    one = (np.array([10.0]), np.array([0.1]), np.array([1e6]))
    assert useful_deadline(*one, 20.0, 0.5) == pytest.approx(40, rel=0.05)
    assert useful_deadline(*one, 80.0, 0.5) == pytest.approx(100, rel=0.05)
    assert useful_deadline(*one, 20.0, 0.75) == pytest.approx(100, rel=0.05)


def test_nobody_is_waited_for_who_has_nothing_left_to_do() -> None:
    assert useful_deadline(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([3.0, 4.0]), 1e6, 0.9) == 6.0


def test_the_window_is_measured_and_a_round_without_a_report_doubles_the_deadline() -> None:
    setup = make_setup(make_ledger([1000, 1000], network_s=[10.0, 10.0]))
    policy = UsefulWork()
    state = make_state(ledger=setup.ledger, deadline=policy.init(setup))
    cohort = np.array([0, 1])
    before, quorum = policy.plan(setup, state, cohort)
    assert quorum == 2
    failed = replace(make_result(missing=["c0", "c1"]), window_s=20.0)
    for times in (2, 4):
        state = replace(state, deadline=policy.observe(setup, state, failed))
        patient, _ = policy.plan(setup, replace(state, deadline=replace(state.deadline, failed=0)), cohort)
        assert patient > before
        assert policy.plan(setup, state, cohort)[0] == times * patient
    state = replace(state, deadline=policy.observe(setup, state, make_result([make_report("c0", [1.0], 1.0)])))
    assert state.deadline == UsefulState(window_s=make_result().window_s, failed=0)


def test_a_cohort_of_nobody_is_no_error() -> None:
    setup = make_setup()
    policy = UsefulWork()
    assert policy.plan(setup, make_state(deadline=policy.init(setup)), np.array([], dtype=np.int64))[1] == 0
