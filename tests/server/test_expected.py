"""What the server expects of a client's time."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_ledger, make_setup
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.server.expected import batches, completion_s, mean_completion_s, whole_seconds


@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(1, 500))
def test_batches_are_the_ceiling_and_at_least_one(samples: list[int], batch_size: int) -> None:
    assert batches(np.array(samples), batch_size).tolist() == [max(-(-n // batch_size), 1) for n in samples]


def test_completion_is_network_plus_epochs_at_the_mean_batch_latency() -> None:
    ledger = make_ledger([10, 20], network_s=[1.0, 2.0], batch_s=[0.5, 0.25])
    assert completion_s(ledger, np.array([1.0, 2.0]), 4, slice(None)).tolist() == [3.0, 4.0]
    assert completion_s(ledger, np.array([3.0]), 2, np.array([1])).tolist() == [3.5]


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
