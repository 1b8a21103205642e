"""No threshold."""

from __future__ import annotations

from builders import make_report, make_result, make_setup, make_state

from fedbalancer.server.threshold import NoThreshold


def test_is_zero_and_remembers_nothing() -> None:
    policy, setup, state = NoThreshold(), make_setup(), make_state()
    assert policy.init(setup) is None
    assert policy.observe(setup, state, make_result([make_report(loss_low=3.0)])) is None
    assert policy.threshold(setup, state) == 0.0
