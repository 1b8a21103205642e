"""Ratios over seeds: paired, on the log scale, and bounds for runs that never reached the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.reporting.ratio import Arrival, median_s, one_ratio, paired_ratio


def pairs(ratios: list[float], censored: tuple[int, ...] = ()) -> list[tuple[Arrival, Arrival]]:
    """Seeds on which the reference takes 100 s, and the other 100 s over the ratio or, if censored, longer."""
    return [(Arrival(100.0), Arrival(100.0 / ratio, place not in censored)) for place, ratio in enumerate(ratios)]


def test_the_mean_is_geometric_so_that_twice_and_half_cancel() -> None:
    found = paired_ratio(pairs([2.0, 0.5]))
    assert found.mean == pytest.approx(1.0)
    assert found.resolved == ""


def test_the_ratios_are_paired_not_those_of_the_means() -> None:
    """Seeds differ tenfold in their times, and the method is twice as fast on each."""
    seeds = [(Arrival(base), Arrival(base / 2)) for base in (10.0, 1000.0, 100.0, 30.0, 300.0)]
    found = paired_ratio(seeds)
    assert (found.mean, found.low, found.high) == (pytest.approx(2.0),) * 3
    assert found.resolved == "faster"


def test_the_interval_holds_what_it_promises() -> None:
    """Of 300 experiments with six log-normal ratios around 1, about 95 in 100 intervals hold 1: a plain percentile
    bootstrap holds it in 85."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        found = paired_ratio(pairs(list(np.exp(rng.normal(0, 0.5, 6)))))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1 <= found.high
    assert 0.90 <= hits / 300 <= 0.985


def test_few_seeds_get_students_interval_one_gets_none_and_equal_ones_a_point() -> None:
    logs = np.log([1.0, 2.0, 4.0])
    half = 4.302653 * np.std(logs, ddof=1) / math.sqrt(3)
    found = paired_ratio(pairs([1.0, 2.0, 4.0]))
    assert (found.low, found.high) == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))
    one = paired_ratio(pairs([3.0]))
    assert (one.mean, one.std, one.low, one.high, one.p) == (pytest.approx(3.0), None, None, None, None)
    same = paired_ratio(pairs([1.0] * 7))
    assert (same.low, same.high, same.p) == (1.0, 1.0, 1.0)
    assert paired_ratio([]).mean is None


def test_a_run_that_never_arrived_makes_the_mean_a_bound_and_leaves_one_end_of_the_interval() -> None:
    known = paired_ratio(pairs([1.5, 1.6, 1.4, 1.7, 0.5, 1.5]))
    found = paired_ratio(pairs([1.5, 1.6, 1.4, 1.7, 0.5, 1.5], censored=(4,)))
    assert found.bound == "<"
    assert (found.mean, found.high) == (known.mean, known.high)
    assert (found.low, found.std) == (None, None)
    few = paired_ratio(pairs([1.5, 1.6, 0.5], censored=(2,)))
    assert (few.bound, few.low, few.high) == ("<", None, None), "Student's interval of bounds would be a lie"


@given(st.lists(st.floats(0.1, 10.0), min_size=5, max_size=9), st.data())
def test_whatever_a_censored_run_would_have_taken_the_bounds_hold(ratios: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ratios) - 1))
    slower = data.draw(st.floats(1.0, 20.0))
    bound = paired_ratio(pairs(ratios, censored=(place,)))
    truth = paired_ratio(pairs([ratio / slower if at == place else ratio for at, ratio in enumerate(ratios)]))
    assert bound.mean is not None
    assert truth.mean is not None
    assert truth.mean <= bound.mean * (1 + 1e-9)
    if len(set(ratios)) > 1:
        assert bound.high is not None
        assert truth.high is not None
        # the level of the interval depends on the number of seeds only, so it is the same resamples
        assert truth.high <= bound.high * (1 + 1e-9)


def test_a_reference_that_never_arrived_is_a_bound_from_below_and_both_say_nothing() -> None:
    never = Arrival(200.0, reached=False)
    assert one_ratio(never, Arrival(50.0)) == (4.0, ">")
    found = paired_ratio([(never, Arrival(50.0))] * 5)
    assert (found.mean, found.bound, found.low, found.high) == (pytest.approx(4.0), ">", pytest.approx(4.0), None)
    assert found.resolved == "faster"
    assert paired_ratio([(never, never), (Arrival(1.0), Arrival(1.0))]).mean is None
    assert paired_ratio([(never, Arrival(5.0)), (Arrival(1.0), never)]).mean is None


@pytest.mark.parametrize(("seeds", "least"), [(3, 0.25), (5, 0.0625), (8, 2 / 2**8)])
def test_the_paired_test_is_exact_and_cannot_show_more_than_the_seeds_allow(seeds: int, least: float) -> None:
    rng = np.random.default_rng(1)
    found = paired_ratio(pairs(list(rng.uniform(1.5, 3.0, seeds))))
    assert found.p == pytest.approx(least)


def test_with_bounds_the_test_is_that_of_signs_and_says_nothing_if_a_side_is_open() -> None:
    slow = paired_ratio(pairs([0.5] * 6, censored=(0, 1)))
    assert slow.p == pytest.approx(2 / 2**6)
    assert paired_ratio(pairs([2.0] * 6, censored=(0,))).p is None


def test_the_median_is_kaplan_meiers_and_never_drops_who_did_not_arrive() -> None:
    arrived = [Arrival(seconds) for seconds in (10.0, 20.0, 30.0)]
    never = Arrival(100.0, reached=False)
    assert median_s(arrived) == (20.0, None)
    assert median_s([*arrived, never, never]) == (30.0, None), "without them it would be 20"
    assert median_s([*arrived[:2], never, never, never]) == (None, 100.0)
    assert median_s([never]) == (None, 100.0)
    assert median_s([]) == (None, None)


def test_a_run_that_ended_early_without_arriving_counts_only_as_long_as_it_was_watched() -> None:
    """Censored before anybody arrived, it says nothing: the median is that of the others."""
    early = Arrival(1.0, reached=False)
    assert median_s([early, Arrival(10.0), Arrival(20.0), Arrival(30.0)]) == (20.0, None)
