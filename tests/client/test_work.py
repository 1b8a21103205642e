"""How much a client does before the deadline: each rule against brute force over every amount of work."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.contracts import WorkPolicy


@st.composite
def rounds(draw: Callable[..., Any]) -> tuple[list[float], float, int, int]:
    """When a client is done after 0, 1, ... batches (it never decreases; from some point on maybe never), a deadline,
    batches per epoch and epochs."""
    per_epoch, epochs = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    count = per_epoch * epochs + 1
    steps = draw(st.lists(st.floats(0, 5), min_size=count, max_size=count))
    never = draw(st.integers(0, 2 * count))
    elapsed = [time if number < never else math.inf for number, time in enumerate(accumulate(steps))]
    deadline_s = draw(st.floats(0, 150) | st.sampled_from(elapsed) | st.just(math.inf))
    return elapsed, deadline_s, per_epoch, epochs


def done(policy: WorkPolicy, case: tuple[list[float], float, int, int]) -> int:
    elapsed, deadline_s, per_epoch, epochs = case
    return policy.batches(lambda count: elapsed[count], deadline_s, per_epoch, epochs)


@given(rounds())
def test_all_or_nothing(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    everything = per_epoch * epochs
    assert done(AllOrNothing(), case) == (everything if elapsed[everything] <= deadline_s else 0)


@given(rounds())
def test_whole_epochs_is_the_largest_number_of_epochs_in_time(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    fitting = [epoch for epoch in range(1, epochs + 1) if elapsed[epoch * per_epoch] <= deadline_s]
    assert done(WholeEpochs(), case) == max(fitting, default=0) * per_epoch


@given(rounds())
def test_whole_batches_is_the_largest_number_of_batches_in_time(case: tuple[list[float], float, int, int]) -> None:
    elapsed, deadline_s, per_epoch, epochs = case
    fitting = [count for count in range(1, per_epoch * epochs + 1) if elapsed[count] <= deadline_s]
    assert done(WholeBatches(), case) == max(fitting, default=0)


@given(rounds())
def test_finer_rules_never_do_less(case: tuple[list[float], float, int, int]) -> None:
    assert done(AllOrNothing(), case) <= done(WholeEpochs(), case) <= done(WholeBatches(), case)


@pytest.mark.parametrize("policy", [AllOrNothing(), WholeEpochs(), WholeBatches()])
def test_exactly_at_the_deadline_is_in_time(policy: WorkPolicy) -> None:
    assert policy.batches(float, 6.0, 3, 2) == 6
