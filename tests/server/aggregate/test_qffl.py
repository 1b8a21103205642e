"""q-FFL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import ClientReport
from fedbalancer.server.aggregate import QFFL

SETUP = make_setup(learning_rate=0.1)


def report(client: str, update: list[float], loss: float, weight: float = 1.0) -> ClientReport:
    made = make_report(client, update, weight)
    return replace(made, summary=replace(made.summary, loss_sum=4 * loss, loss_count=4.0))


@given(st.lists(st.tuples(st.floats(-5, 5, width=32), st.floats(0.01, 10), st.floats(1, 500)), min_size=1, max_size=6))
def test_q_0_is_the_plain_mean_of_the_updates_whatever_losses_and_samples(
    clients: list[tuple[float, float, float]],
) -> None:
    reports = [report(f"c{i}", [update, 0.0], loss, n) for i, (update, loss, n) in enumerate(clients)]
    weights, _ = QFFL(q=0).aggregate(SETUP, make_state(), reports)
    assert weights[0] == pytest.approx(np.mean([update for update, _, _ in clients]), rel=1e-5, abs=1e-6)


def test_one_client_by_hand() -> None:
    # L = 10, g = -10 * (0.3, -0.4) with |g|^2 = 25; F = 2, q = 1: Delta = 2 g, h = 25 + 10 * 2 = 45.
    weights, _ = QFFL(q=1).aggregate(SETUP, make_state(), [report("a", [0.3, -0.4], 2.0)])
    assert weights == pytest.approx(2 * 10 * np.array([0.3, -0.4]) / 45, rel=1e-5)


def test_the_higher_q_the_more_a_high_loss_counts() -> None:
    reports = [report("easy", [1.0, 0.0], 0.1), report("hard", [0.0, 1.0], 3.0)]
    shares = []
    for q in (0.0, 0.5, 1.0, 2.0):
        weights, _ = QFFL(q=q).aggregate(SETUP, make_state(), reports)
        shares.append(float(weights[1] / weights.sum()))
    assert shares[0] == pytest.approx(0.5)
    assert shares == sorted(shares)
    assert shares[-1] > 0.99


@pytest.mark.parametrize("loss", [0.0, -0.3])
def test_a_loss_that_noise_made_negative_gives_no_infinity(loss: float) -> None:
    weights, _ = QFFL(q=0.5).aggregate(SETUP, make_state(), [report("a", [1.0, 2.0], loss), report("b", [0.5, 0], 1.0)])
    assert np.isfinite(weights).all()
