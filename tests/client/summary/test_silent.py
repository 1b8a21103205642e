"""Silence about losses."""

from __future__ import annotations

import numpy as np
from builders import make_order

from fedbalancer.client.summary import Silent
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Summary
from fedbalancer.testing import check_policy


def test_whatever_the_losses_the_same_is_released() -> None:
    seen, order = np.array([0, 2]), make_order(loss_threshold=0.5)
    released = {
        Silent().summarize(np.array(losses), seen, 0.7, order, stream(0, "noise"))
        for losses in ([1.0, 2.0, 3.0], [9.0, 0.0, 0.1])
    }
    assert released == {Summary(0, 0, 0, 0, 0, 0, trained=2, batch_s=0.7)}


def test_keeps_the_contract() -> None:
    assert check_policy(Silent()) == "summary"
