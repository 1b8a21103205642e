"""The majority vote."""

from __future__ import annotations

import pytest
from builders import make_report, make_setup, make_state

from fedbalancer.server.aggregate import MajorityVote


def test_every_client_has_one_vote_and_a_tie_moves_nothing() -> None:
    reports = [make_report("a", [1e9, 1.0], 1e9), make_report("b", [-1e-9, 1.0], 1.0), make_report("c", [0.0, -1.0], 1)]
    weights, _ = MajorityVote(step=0.5).aggregate(make_setup(), make_state(), reports)
    assert weights.tolist() == [0.0, 0.5]


def test_the_step_is_the_learning_rate_unless_given() -> None:
    weights, _ = MajorityVote().aggregate(
        make_setup(learning_rate=0.03), make_state(), [make_report("a", [2.0, -7.0], 1.0)]
    )
    assert weights == pytest.approx([0.03, -0.03])
