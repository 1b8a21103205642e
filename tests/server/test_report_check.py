"""What a client sends is checked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_summary

from fedbalancer.server.report_check import fault

WEIGHTS = np.zeros(2, dtype=np.float32)


def test_a_sound_report_has_no_fault() -> None:
    assert fault(make_report(), WEIGHTS) is None
    assert fault(make_report(loss_low=-1.0, over_count=-0.5, loss_sum=-3.0), WEIGHTS) is None  # noise may do that


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_must_be_finite(value: float) -> None:
    assert "finite" in str(fault(make_report(update=[0.0, value]), WEIGHTS))


@pytest.mark.parametrize("update", [[0.0], [0.0, 0.0, 0.0], []])
def test_an_update_must_have_the_shape_of_the_weights(update: list[float]) -> None:
    assert "shape" in str(fault(make_report(update=update), WEIGHTS))
    assert "shape" in str(fault(replace(make_report(), update=np.zeros((1, 2), dtype=np.float32)), WEIGHTS))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_must_be_a_finite_number_over_zero(weight: float) -> None:
    assert "weight" in str(fault(make_report(weight=weight), WEIGHTS))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s"]
)
def test_every_statistic_must_be_finite_and_is_named(name: str, value: float) -> None:
    assert name in str(fault(replace(make_report(), summary=make_summary(**{name: value})), WEIGHTS))
