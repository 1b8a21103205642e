"""What a client sends is checked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_summary

from fedbalancer.errors import TrainingDiverged
from fedbalancer.server.report_check import believed, fault
from fedbalancer.types import ServerState

WEIGHTS = np.zeros(2, dtype=np.float32)


def state_of(*sizes: int) -> ServerState:
    return ServerState(round=4, clock_s=0.0, weights=WEIGHTS, ledger=make_ledger(size=sizes))  # type: ignore[call-arg]


def test_one_bad_report_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = make_report("c0"), make_report("c1", update=[0.0, 1e30])
    found = believed(make_result([good, bad], ["c2"]), state_of(100, 100, 100))
    assert found.reports == (good,)
    assert [(each.client, each.why) for each in found.missing] == [("c1", "invalid"), ("c2", "train")]
    assert "round 5: the report of client 'c1' is left out: a change of 1e+30 in one parameter" in caplog.text
    sound = make_result([good], ["c2"])
    assert believed(sound, state_of(100, 100, 100)) is sound


def test_if_nobody_can_be_believed_the_training_has_diverged() -> None:
    with pytest.raises(TrainingDiverged, match="client 'c0' in round 5 sent an update with a value"):
        believed(make_result([make_report("c0", update=[0.0, math.nan])]), state_of(100))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trained": 2**33}, "trained 8.58993e+09, which is at most 100"), ({"over_sumsq": 1e200}, "over_sumsq 1e+200"),
        ({"over_count": 2e4}, "over_count 20000"), ({"loss_high": 1e40}, "loss_high 1e+40"),
        ({"loss_count": 101.0}, "loss_count 101"), ({"weight": 101.0}, "weight 101"),
    ],
)  # fmt: skip
def test_what_the_samples_of_a_client_cannot_give_is_not_believed(changes: dict[str, float], words: str) -> None:
    assert words in str(fault(make_report(**changes), WEIGHTS, 100))  # type: ignore[arg-type]


def test_what_the_server_itself_read_from_noise_is_no_claim() -> None:
    assert fault(make_report(loss_count=150.0, read_by_server=True), WEIGHTS, 100) is None
    assert fault(make_report(loss_count=150.0, trained=101, read_by_server=True), WEIGHTS, 100) is not None


def test_an_update_must_be_of_real_numbers() -> None:
    assert "complex" in str(fault(replace(make_report(), update=np.zeros(2, dtype=np.complex64)), WEIGHTS))


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
