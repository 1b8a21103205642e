"""Algorithm 3: control of the two ratios."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import Unchanged, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.server.pace import PaceState, RatioControl

utilities = st.lists(st.floats(0, 100), max_size=80)
steps = st.floats(0, 1)


def papers_control(values: list[float], w: int, lss: float, dss: float) -> list[tuple[float, float]]:
    """Ctrl as it is printed in the paper, once per round; U(a:b) has no entries before the first round."""
    U: list[float] = []
    ltr, ddlr = 0.0, 1.0
    path = []
    for R, U_R in enumerate(values, start=1):
        U.append(U_R)
        if R % w == 0:
            past, recent = U[max(R - 2 * w, 0) : max(R - w, 0)], U[R - w : R]
            if math.fsum(past) > math.fsum(recent):
                ltr = min(ltr + lss, 1.0)
                ddlr = max(ddlr - dss, 0.0)
            else:
                ltr = max(ltr - lss, 0.0)
                ddlr = min(ddlr + dss, 1.0)
        path.append((ltr, ddlr))
    return path


def walk(control: RatioControl, values: list[float]) -> list[PaceState]:
    path, pace = [], control.init(make_setup())
    for value in values:
        pace = control.step(pace, value)
        path.append(pace)
    return path


@given(utilities, st.integers(1, 8), steps, steps)
def test_equals_the_paper_line_by_line(values: list[float], w: int, lss: float, dss: float) -> None:
    found = [(pace.loss_threshold_ratio, pace.deadline_ratio) for pace in walk(RatioControl(w, lss, dss), values)]
    wanted = papers_control(values, w, lss, dss)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


@given(utilities, st.integers(1, 8), steps, steps)
def test_ratios_stay_within_zero_and_one_and_move_oppositely(
    values: list[float], w: int, lss: float, dss: float
) -> None:
    path = [PaceState(), *walk(RatioControl(w, lss, dss), values)]
    for before, after in pairwise(path):
        assert 0 <= after.loss_threshold_ratio <= 1
        assert 0 <= after.deadline_ratio <= 1
        sharper = after.loss_threshold_ratio - before.loss_threshold_ratio
        longer = after.deadline_ratio - before.deadline_ratio
        assert sharper * longer <= 0


@given(st.lists(st.floats(-100, 100), max_size=60), st.integers(1, 8))
def test_moves_only_every_w_rounds_and_never_before_two_windows(values: list[float], w: int) -> None:
    path = [PaceState(), *walk(RatioControl(w), values)]
    for number, (before, after) in enumerate(pairwise(path), start=1):
        if number % w or number < 2 * w:
            assert after.loss_threshold_ratio == before.loss_threshold_ratio
            assert after.deadline_ratio == before.deadline_ratio


def test_falling_utility_sharpens_and_shortens_to_exactly_the_ends() -> None:
    path = walk(RatioControl(w=1), [100.0 - number for number in range(30)])
    assert (path[2].loss_threshold_ratio, path[2].deadline_ratio) == (0.1, 0.9)
    assert (path[-1].loss_threshold_ratio, path[-1].deadline_ratio) == (1.0, 0.0)


def test_equal_utility_is_no_reason_to_sharpen() -> None:
    path = walk(RatioControl(w=2), [3.0] * 20)
    assert {pace.loss_threshold_ratio for pace in path} == {0.0}
    assert {pace.deadline_ratio for pace in path} == {1.0}


def test_the_first_step_is_possible_after_twice_the_window() -> None:
    path = walk(RatioControl(), [100.0 - number for number in range(40)])
    assert path[38].loss_threshold_ratio == 0.0
    assert path[39].loss_threshold_ratio == 0.05
    assert path[39].deadline_ratio == 0.95


def test_each_ratio_has_its_own_step() -> None:
    pace = walk(RatioControl(w=1, lss=0.2, dss=0.03), [2.0, 1.0])[-1]
    assert (pace.loss_threshold_ratio, pace.deadline_ratio) == (0.2, 0.97)


@given(st.lists(st.floats(0, 100), min_size=10, max_size=60), st.integers(1, 5))
def test_remembers_no_more_than_two_windows(values: list[float], w: int) -> None:
    pace = walk(RatioControl(w), values)[-1]
    assert pace.utilities == tuple(values[-2 * w :])
    assert pace.observed == len(values)


def test_a_round_that_nobody_completed_does_not_count() -> None:
    control, setup = RatioControl(w=1), make_setup()
    state = make_state(pace=control.init(setup))
    rounds = [[make_report(loss_sum=loss)] if loss else [] for loss in (30.0, 0.0, 20.0, 0.0, 10.0)]
    seen = []
    for reports in rounds:
        result = make_result(reports, missing=["c5"])
        with Unchanged(state, result):
            pace = control.observe(setup, state, result)
        state = replace(state, pace=pace)
        seen.append((pace.utility, pace.loss_threshold_ratio, pace.observed))
    assert seen == [(0.03, 0.0, 1), (None, 0.0, 1), (0.02, 0.05, 2), (None, 0.05, 2), (0.01, 0.1, 3)]
