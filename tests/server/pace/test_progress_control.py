"""Control of the two ratios by how fast the losses of returning clients fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.server.pace import ProgressControl
from fedbalancer.server.pace.progress_control import ProgressState
from fedbalancer.testing import check_policy

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
