"""The coordinate-wise median."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_report, make_setup, make_state

from fedbalancer.server.aggregate import Median


def test_a_minority_cannot_move_the_model_beyond_the_others() -> None:
    honest = [make_report(f"h{i}", [1.0 + i, -1.0 - i], 1.0) for i in range(3)]
    liars = [make_report(f"l{i}", [1e30, 1e30], 1e9) for i in range(2)]
    weights, _ = Median().aggregate(make_setup(), make_state(), [*honest, *liars])
    assert weights.tolist() == [3.0, -1.0]


def test_an_even_number_takes_the_middle_between_two() -> None:
    state = make_state(weights=np.array([10.0, 0.0], dtype=np.float32))
    weights, _ = Median().aggregate(
        make_setup(), state, [make_report("a", [1.0, 0.0], 9.0), make_report("b", [2.0, 4.0], 1.0)]
    )
    assert weights == pytest.approx([11.5, 2.0])
