"""The utility of a round, and the pace that does not move."""

from __future__ import annotations

import math

import pytest
from builders import make_report, make_result, make_setup, make_state

from fedbalancer.server.pace import ConstantPace, round_utility


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
