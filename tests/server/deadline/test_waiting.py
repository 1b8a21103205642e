"""No deadline: wait for a share of the cohort."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.server.deadline import WaitForShare


def quorum(share: float, cohort: int) -> int:
    deadline_s, found = WaitForShare(share).plan(make_setup(), make_state(), np.arange(cohort))
    assert deadline_s == math.inf
    return found


@pytest.mark.parametrize(("cohort", "accepted"), [(5, 4), (10, 8), (7, 5), (100, 80), (1, 1), (0, 0)])
def test_smartpc_takes_the_whole_part_of_eighty_per_cent(cohort: int, accepted: int) -> None:
    assert quorum(0.8, cohort) == accepted


@given(st.integers(0, 1000))
def test_wait_for_all_waits_for_all(cohort: int) -> None:
    assert quorum(1.0, cohort) == cohort


@given(st.integers(1, 1000), st.integers(1, 100))
def test_is_the_exact_whole_part_and_at_least_one(cohort: int, percent: int) -> None:
    assert quorum(percent / 100, cohort) == max(percent * cohort // 100, 1)
