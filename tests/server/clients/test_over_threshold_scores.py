"""The score of a client: each of its effects alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import heard, known_clients, make_ledger, oort_world
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import FloatArray, Ledger
from fedbalancer.server.clients import OverThresholdUtility


def scores(ledger: Ledger, policy: OverThresholdUtility, **state: Any) -> FloatArray:
    return policy.scores(*oort_world(ledger, **state), np.arange(len(ledger.clients)))


PLAIN = OverThresholdUtility(clip=1.0, normalise=False)
"""Neither clipped nor scaled."""


def test_is_the_papers_statistical_utility() -> None:
    ledger = heard(make_ledger([100] * 2), [0, 1], over_count=[4.0, 9.0], over_sumsq=[10.0, 3.0])
    temporal = math.sqrt(0.1 * math.log(11))
    expected = [n * math.sqrt(squares / n) + temporal for n, squares in [(4, 10.0), (9, 3.0)]]
    assert scores(ledger, PLAIN) == pytest.approx(expected)


def test_scales_utilities_to_between_zero_and_one() -> None:
    temporal = math.sqrt(0.1 * math.log(11))
    found = scores(known_clients([2.0, 3.0, 6.0]), OverThresholdUtility(clip=1.0))
    assert found == pytest.approx(np.array([0.0, 0.25, 1.0]) + temporal)


def test_clips_utilities_at_the_quantile() -> None:
    found = scores(known_clients([*range(19), 1000.0]), replace(PLAIN, clip=0.9))
    assert found[18] == found[19] == found.max()
    assert (np.diff(found[:19]) > 0).all()


def test_adds_more_the_longer_ago_a_client_took_part() -> None:
    found = scores(known_clients([0.0] * 3, last_round=[9, 4, 1]), PLAIN)
    assert found == pytest.approx([math.sqrt(0.1 * math.log(11) / last) for last in (9, 4, 1)])


def test_punishes_only_what_is_slower_than_preferred() -> None:
    network_s = np.array([10.0, 50.0, 150.0])  # and 50 s of training
    ledger = replace(known_clients([1000.0] * 3), network_s=network_s)
    fast, equal, slow = scores(ledger, replace(PLAIN, alpha=2.0), preferred_s=100.0)
    assert fast == equal
    assert slow == pytest.approx(equal * (100 / 200) ** 2)


def test_expects_the_time_of_the_samples_trained_lately() -> None:
    ledger = known_clients([1000.0] * 2)
    ledger = replace(ledger, recent_trained=np.array([[100.0] * 5, [10.0] * 5]))  # 60 s and 15 s in all
    large, small = scores(ledger, replace(PLAIN, alpha=1.0), preferred_s=30.0)
    assert large == pytest.approx(small / 2)


def test_alpha_zero_does_not_punish() -> None:
    ledger = replace(known_clients([1.0] * 2), network_s=np.array([10.0, 1e6]))
    fast, slow = scores(ledger, replace(PLAIN, alpha=0.0), preferred_s=1.0)
    assert fast == slow


def test_equal_utilities_are_as_good_as_any() -> None:
    temporal = math.sqrt(0.1 * math.log(11))
    assert scores(known_clients([0.0] * 4), OverThresholdUtility()) == pytest.approx([1 + temporal] * 4)


@given(
    st.lists(st.tuples(st.floats(-10, 1e6), st.floats(-10, 1e9)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 1000),
)
def test_is_finite_and_positive_whatever_noise_did(
    released: list[tuple[float, float]], normalise: bool, round: int
) -> None:
    count, squares = zip(*released, strict=True)
    ledger = heard(make_ledger([100] * len(count)), range(len(count)), over_count=count, over_sumsq=squares)
    setup, state = oort_world(ledger, preferred_s=20.0)
    found = OverThresholdUtility(normalise=normalise).scores(setup, replace(state, round=round), np.arange(len(count)))
    assert np.isfinite(found).all()
    assert (found > 0).all()
