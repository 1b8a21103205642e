"""A fixed deadline of k T."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_ledger, make_result, make_setup, make_state

from fedbalancer.server.deadline import FixedDeadline


@pytest.mark.parametrize(("multiple", "deadline_s"), [(1, 52.0), (2, 105.0), (1.5, 78.0)])
def test_is_a_multiple_of_the_mean_completion_time_cut_after_the_multiplication(
    multiple: float, deadline_s: float
) -> None:
    setup = make_setup(make_ledger([100, 70], network_s=[10.0, 10.0]))  # 60 s and 45 s: T = 52.5
    policy = FixedDeadline(multiple)
    state = make_state(deadline=policy.init(setup))
    assert policy.plan(setup, state, np.array([0, 1])) == (deadline_s, 2)


def test_stays_the_same_whatever_happens() -> None:
    setup = make_setup()
    policy = FixedDeadline(1)
    state = make_state(deadline=policy.init(setup))
    assert policy.observe(setup, state, make_result(missing=["c0"])) == state.deadline


def test_big_clients_count_with_the_sample_cap() -> None:
    ledger = make_ledger([100, 1000])  # 60 s each once the second is cut at 100 samples
    assert FixedDeadline(1).init(make_setup(ledger, sample_cap=100)).deadline_s == 60.0
    assert FixedDeadline(1).init(make_setup(ledger)).deadline_s == 285.0
