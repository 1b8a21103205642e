"""Summaries without statistics of losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_order

from fedbalancer.client.summary import FractionTracker, Silent
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Summary
from fedbalancer.methods.table import method
from fedbalancer.server.threshold import TrackedThreshold
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


EXACT = FractionTracker(noise_multiplier=0.0)


def share(losses: list[float], threshold: float) -> float:
    order = make_order(loss_threshold=threshold)
    found = EXACT.summarize(np.array(losses), np.arange(2), 1.0, order, np.random.default_rng(0))
    assert replace(found, released=()) == Summary(0, 0, 0, 0, 0, 0, 2, 1.0)
    (value,) = found.released
    return value


def test_keeps_the_contract_of_fraction_tracker() -> None:
    assert check_policy(FractionTracker()) == "summary"


def test_the_share_at_or_above_the_threshold() -> None:
    assert share([0.5, 1.0, 2.0, np.nan], 1.0) == pytest.approx(2 / 3)


def test_all_of_a_clients_data_moves_it_by_one_at_most() -> None:
    assert share([9.0] * 100, 1.0) - share([0.0] * 3, 1.0) == 1.0


def test_a_share_that_noise_cannot_explain_is_said() -> None:
    assert FractionTracker(7.0).fault([70.9], 30) is None
    assert "share of 71.1" in str(FractionTracker(7.0).fault([71.1], 30))
    assert "share of -0.1" in str(EXACT.fault([-0.1], 30))


def test_it_goes_with_a_threshold_that_listens_and_with_nothing_that_needs_more() -> None:
    slots = "threshold=TrackedThreshold(share=.5),pace=ConstantPace,summary=fraction-tracker(noise_multiplier=7)"
    made = method(f"fedbalancer-clients[{slots}]")
    assert made.summary == FractionTracker(7)
    assert made.threshold == TrackedThreshold(0.5)
    with pytest.raises(BadSetting, match="losses"):
        method(f"fedbalancer[{slots}]")
    with pytest.raises(BadSetting, match="TrackedThreshold"):
        method("fedavg+1t[summary=fraction-tracker]")
    with pytest.raises(BadSetting, match="FractionTracker"):
        method("fedavg+1t[threshold=TrackedThreshold]")
