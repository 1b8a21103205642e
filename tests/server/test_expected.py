"""Expected completion times."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_ledger, make_setup, make_state

from fedbalancer.server.deadline import PeakDeadline
from fedbalancer.server.deadline.peak import PeakState
from fedbalancer.server.expected import completion_s, expected_first_s, expected_s, mean_completion_s, whole_seconds


def test_completion_is_network_plus_epochs_at_the_mean_batch_latency() -> None:
    ledger = make_ledger([10, 20], network_s=[1.0, 2.0], batch_s=[0.5, 0.25])
    setup = make_setup(ledger)
    assert completion_s(setup, ledger, np.array([1.0, 2.0]), 4, slice(None)).tolist() == [3.0, 4.0]
    assert completion_s(setup, ledger, np.array([3.0]), 2, np.array([1])).tolist() == [3.5]


def test_the_mean_is_over_all_clients() -> None:
    setup = make_setup(make_ledger([100, 55]))
    assert mean_completion_s(setup) == pytest.approx((60 + 40) / 2)
    assert mean_completion_s(setup, forward_pass=True) == pytest.approx((65 + 43) / 2)


def test_a_forward_pass_takes_half_an_epoch() -> None:
    one = make_setup(make_ledger([100]), epochs=1)
    assert mean_completion_s(one, forward_pass=True) - mean_completion_s(one) == pytest.approx(5.0)


@pytest.mark.parametrize(("seconds", "cut"), [(62.9, 62.0), (1.0, 1.0), (0.7, 0.7), (1.99, 1.0)])
def test_deadlines_are_cut_to_whole_seconds_above_one(seconds: float, cut: float) -> None:
    assert whole_seconds(seconds) == cut


def test_a_look_every_round_is_expected_every_round() -> None:
    """The deadline and the duration penalty know of the forward pass of `+forwardpass`, as the authors' do."""
    ledger = make_ledger([100, 55], network_s=[1.0, 2.0], batch_s=[0.5, 0.25])
    once, always = make_setup(ledger), make_setup(ledger, forward_pass_every_round=True)
    rows = np.arange(2)
    for expected in (expected_s, expected_first_s):
        assert (expected(always, ledger, rows) - expected(once, ledger, rows)).tolist() == [
            0.5 * 10 * 0.5,
            0.5 * 6 * 0.25,
        ]
    state = make_state(ledger, deadline=PeakState(0.0))
    bounds = [PeakDeadline(grid="continuous").bounds(setup, state, rows) for setup in (once, always)]
    assert bounds == [(1.0 + 10 * 0.5, 2.0 + 5 * 6 * 0.25), (2.0 + 1.5 * 6 * 0.25, 2.0 + 5.5 * 6 * 0.25)]
    assert mean_completion_s(always) == mean_completion_s(once)
