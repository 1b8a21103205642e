"""Control of the loss-threshold ratio and the deadline ratio."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.server.pace import ConstantPace, PaceState, ProgressControl, ProgressState, RatioControl, round_utility
from fedbalancer.testing import check_policy


def test_is_the_mean_loss_per_second_of_deadline() -> None:
    reports = [make_report("c0", loss_sum=30.0, loss_count=10.0), make_report("c1", loss_sum=6.0, loss_count=2.0)]
    assert round_utility(make_result(reports, deadline_s=50.0, seconds=20.0)) == pytest.approx(36 / (12 * 50))


def test_without_a_deadline_the_seconds_of_the_round_count() -> None:
    reports = [make_report(loss_sum=30.0, loss_count=10.0)]
    assert round_utility(make_result(reports, deadline_s=math.inf, seconds=20.0)) == pytest.approx(30 / (10 * 20))


def test_is_none_when_nobody_completed() -> None:
    assert round_utility(make_result(missing=["c0"])) is None
    assert round_utility(make_result(deadline_s=math.inf, seconds=0.0)) is None


def test_clients_that_did_not_complete_do_not_count() -> None:
    reports = [make_report("c0")]
    assert round_utility(make_result(reports)) == round_utility(make_result(reports, missing=["c1"]))


def test_a_constant_pace_keeps_its_ratios_and_records_the_utility() -> None:
    policy, setup = ConstantPace(0.25, 0.5), make_setup()
    first = policy.init(setup)
    after = policy.observe(setup, make_state(pace=first), make_result([make_report(loss_sum=50.0, loss_count=10.0)]))
    assert (first.loss_threshold_ratio, first.deadline_ratio, first.utility) == (0.25, 0.5, None)
    assert (after.loss_threshold_ratio, after.deadline_ratio, after.utility) == (0.25, 0.5, 0.05)


def test_by_default_all_samples_and_the_long_deadline() -> None:
    assert (ConstantPace().loss_threshold_ratio, ConstantPace().deadline_ratio) == (0.0, 1.0)


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
    actual = [(pace.loss_threshold_ratio, pace.deadline_ratio) for pace in walk(RatioControl(w, lss, dss), values)]
    wanted = papers_control(values, w, lss, dss)
    assert len(actual) == len(wanted)
    for ours, theirs in zip(actual, wanted, strict=True):
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


STEADY = [1.0, 1.1, 0.9, 1.0]
FASTER, SLOWER = [each + 1 for each in STEADY], [each - 1 for each in STEADY]


def after(control: ProgressControl, *rounds: list[float]) -> ProgressState:
    pace = control.init(make_setup())
    for paces in rounds:
        pace = control.step(pace, np.array(paces))
    return pace


def report_losses(losses: dict[str, float], clock_s: float, pace: ProgressState) -> ProgressState:
    """The state after a round that ends at this clock, with these mean losses."""
    reports = [make_report(client, loss_sum=10 * loss, loss_count=10.0) for client, loss in losses.items()]
    state = make_state(make_ledger(), clock_s=clock_s - 70, pace=pace)
    return ProgressControl(w=100).observe(make_setup(), state, make_result(reports))


def test_a_loss_that_falls_like_a_power_of_time_has_the_same_pace_early_and_late() -> None:
    pace = ProgressState()
    for clock_s in (100.0, 200.0, 1000.0, 50_000.0):
        pace = report_losses({"c0": 3 * clock_s**-0.5}, clock_s, pace)
    assert pace.utility == pytest.approx(0.5)
    assert np.append(pace.previous_paces, pace.paces) == pytest.approx([0.5] * 3)


def test_only_a_client_that_comes_again_tells_and_each_by_itself() -> None:
    pace = report_losses({"c0": 1.0, "c3": 4.0}, 100.0, ProgressState())
    assert pace.utility is None
    pace = report_losses({"c1": 9.0}, 150.0, pace)
    assert pace.utility is None
    pace = report_losses({"c1": 9.0, "c3": 2.0}, 200.0, pace)
    assert pace.paces == pytest.approx([0.0, 1.0])
    assert np.isnan(pace.losses[[2, 4, 5]]).all()


def test_it_goes_on_while_losses_fall_as_fast_and_turns_when_they_do_not() -> None:
    control = ProgressControl(w=1)
    assert after(control, STEADY).loss_threshold_ratio == 0.05, "the first step needs nothing to compare with"
    on = after(control, STEADY, FASTER)
    assert (on.loss_threshold_ratio, on.deadline_ratio) == (0.1, 0.9)
    back = after(control, STEADY, SLOWER)
    assert (back.loss_threshold_ratio, back.deadline_ratio) == (0.0, 1.0)
    assert after(control, STEADY, SLOWER, STEADY).direction == -1, "what helped is gone on with"


def test_a_window_ends_early_when_the_difference_is_clear_and_only_then() -> None:
    control = ProgressControl(w=5)
    assert after(control, STEADY, FASTER).rounds == 0
    waiting = after(control, STEADY, STEADY, STEADY, STEADY, STEADY)
    assert (waiting.rounds, waiting.loss_threshold_ratio) == (4, 0.05)
    assert after(control, *[STEADY] * 6).rounds == 0


def test_rounds_in_which_nobody_came_again_wait() -> None:
    pace = after(ProgressControl(w=2), [], [], [1.0], [])
    assert (pace.rounds, pace.loss_threshold_ratio) == (4, 0.0)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), max_size=60), st.integers(1, 10))
def test_ratios_stay_within_their_range_whatever_is_told(rounds: list[list[float]], w: int) -> None:
    pace = after(ProgressControl(w=w, lss=0.3, dss=0.3), *rounds)
    assert 0 <= pace.loss_threshold_ratio <= 1
    assert 0 <= pace.deadline_ratio <= 1


def test_clients_that_join_are_at_the_end() -> None:
    pace = report_losses({"c0": 1.0}, 100.0, ProgressState())
    state = make_state(make_ledger((100,) * 8), clock_s=200.0, pace=pace)
    pace = ProgressControl().observe(make_setup(), state, make_result([make_report("c7")]))
    assert len(pace.losses) == len(pace.reported_s) == 8
    assert pace.losses[0] == 1.0


def test_it_keeps_the_contract_of_its_slot() -> None:
    assert check_policy(ProgressControl(w=1)) == "pace"


def test_losses_of_other_samples_in_every_round_are_refused_by_name() -> None:
    with pytest.raises(BadSetting, match="utility_samples=all"):
        fb.run("synthetic", method="canter[pace=ProgressControl]", rounds=1, users=5)


def test_it_moves_within_ten_rounds() -> None:
    ratios: list[float] = []

    def note(row: dict[str, Any]) -> None:
        ratios.append(row["loss_threshold_ratio"])

    fb.run(
        "synthetic",
        method="canter[pace=ProgressControl,summary.utility_samples=all]",
        rounds=12,
        users=30,
        on_round=note,
    )
    assert len(set(ratios[:10])) > 1
