"""All samples, always."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_order

from fedbalancer.client.samples import EverySample


@pytest.mark.parametrize("losses", [None, np.array([0.0, 9.0, 1.0])])
@pytest.mark.parametrize("deadline_s", [0.0, 1e9])
def test_everything_whatever_the_order_says(losses: np.ndarray | None, deadline_s: float) -> None:
    order = make_order(deadline_s=deadline_s, loss_threshold=5.0, sample_cap=1)
    found = EverySample().select(3, losses, 1.0, order, np.random.default_rng(0))
    assert found is not None
    assert found.tolist() == [0, 1, 2]


def test_has_no_cap_to_tell() -> None:
    assert EverySample().cap(np.array([1, 2])) is None
