"""Checks of client reports."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_order, make_report, make_result, make_setup, make_summary

from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.types import ClientReport, RoundResult, ServerState, Timings
from fedbalancer.server import report_check
from fedbalancer.server.report_check import Suspensions, find_fault

WEIGHTS = np.zeros(2, dtype=np.float32)


def state_of(*sizes: int) -> ServerState:
    return ServerState(round=4, clock_s=0.0, weights=WEIGHTS, ledger=make_ledger(size=sizes))  # type: ignore[call-arg]


def drop_invalid_reports(result: RoundResult, state: ServerState, **changes: float) -> RoundResult:
    return report_check.drop_invalid_reports(result, state, make_setup(state.ledger, **changes))


def test_one_bad_report_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = make_report("c0"), make_report("c1", update=[0.0, 1e30])
    actual = drop_invalid_reports(make_result([good, bad], ["c2"], round=5), state_of(100, 100, 100))
    assert actual.reports == (good,)
    assert [(each.client, each.why) for each in actual.missing] == [("c1", "invalid"), ("c2", "train")]
    assert actual.missing[0].problem == "a change of 1e+30 in one parameter, which must be at most 1e+06"
    assert "round 5: rejected the report of client 'c1': a change of 1e+30 in one parameter" in caplog.text
    sound = make_result([good], ["c2"])
    assert drop_invalid_reports(sound, state_of(100, 100, 100)) is sound


@pytest.mark.parametrize(
    "bad",
    [
        make_report("c0", update=[0.0, math.nan]),
        make_report("c0", update=[0.0, 1e30]),
        make_report("c0", loss_high=1e40),
        make_report("c0", loss_sum=math.inf),
        replace(make_report("c0"), problem="training diverged: the loss of sample 3 is nan"),
    ],
)
def test_if_no_report_is_valid_for_three_rounds_the_training_has_diverged(bad: ClientReport) -> None:
    diverged = make_result([bad])
    assert drop_invalid_reports(diverged, state_of(100)).reports == ()
    lost = replace(state_of(100), suspensions=Suspensions(fruitless_rounds=2))
    with pytest.raises(TrainingDiverged, match=r"in 3 rounds; round 5, client 'c0': .*; try a smaller learning_rate"):
        drop_invalid_reports(diverged, lost)
    both = make_result([replace(bad, client="c1"), make_report("c0")])
    assert drop_invalid_reports(both, replace(lost, ledger=make_ledger(size=(100, 100)))).reports == both.reports[1:]


def test_an_asynchronous_round_with_a_single_report_counts_for_less() -> None:
    diverged = make_result([make_report("c0", update=[0.0, math.nan])])
    diverged = replace(diverged, plan=replace(diverged.plan, late="counts"))
    lost = replace(state_of(100), suspensions=Suspensions(fruitless_rounds=7))
    assert drop_invalid_reports(diverged, lost).reports == ()
    with pytest.raises(TrainingDiverged, match="in 9 rounds"):
        drop_invalid_reports(diverged, replace(lost, suspensions=Suspensions(fruitless_rounds=8)))


def test_liars_end_no_run() -> None:
    lies = make_result([make_report("c0", loss_count=1e9)])
    state = replace(state_of(100), suspensions=Suspensions(fruitless_rounds=9))
    assert drop_invalid_reports(lies, state).reports == ()


def test_of_two_reports_of_a_client_one_counts_and_of_one_that_was_not_asked_none() -> None:
    result = make_result([make_report("c0"), make_report("c1")])
    twice = replace(result, reports=(*result.reports, make_report("c0", weight=3.0), make_report("c2")))
    actual = drop_invalid_reports(twice, state_of(100, 100, 100))
    assert [(report.client, report.weight) for report in actual.reports] == [("c0", 10.0), ("c1", 10.0)]
    assert actual.missing == ()


def test_batches_cannot_take_longer_than_the_server_saw() -> None:
    """Five epochs of ten samples in batches of ten are five batches; the client took twelve seconds for everything."""
    honest = replace(make_report(batch_s=2.0), timings=Timings(1.0, 0.0, 10.0, 1.0))
    liar = replace(honest, summary=replace(honest.summary, batch_s=2.5))
    assert find_fault(honest, WEIGHTS, 100, make_order()) is None
    assert "batch_s 2.5, which must be at most 2.4" in str(find_fault(liar, WEIGHTS, 100, make_order()))
    assert find_fault(liar, WEIGHTS, 100, make_order(), slack_s=5.0) is None
    assert "negative" in str(find_fault(make_report(batch_s=-1.0), WEIGHTS, 100))


@pytest.mark.parametrize(("before", "now", "fits"), [
    (50, 60, True), (50, 150, True), (50, 151, False), (50, 10, True), (50, 0, False), (1000, 2000, True),
    (1000, 2001, False), (10**5, 10**6, False),
])  # fmt: skip
def test_data_may_grow_within_a_bound_from_one_report_to_the_next(before: int, now: int, fits: bool) -> None:
    claim = replace(make_report(weight=float(max(now, 1)), trained=max(now, 1)), size=now)
    assert (find_fault(claim, WEIGHTS, before) is None) == fits
    assert "weight" in str(find_fault(replace(claim, weight=now + 1.0), WEIGHTS, before)) or not fits


@pytest.mark.parametrize("count", [1, 2, 3, 9, 100])
def test_no_weight_is_over_so_many_times_the_median_where_there_is_a_limit(count: int) -> None:
    sizes = [10**6] + [40] * count
    reports = [make_report(f"c{n}", weight=float(size), trained=size) for n, size in enumerate(sizes)]
    state, result = state_of(*sizes), make_result(reports)
    assert drop_invalid_reports(result, state) is result, "the paper's methods in the simulator"
    assert [r.weight for r in drop_invalid_reports(result, state, most_weight=5.0).reports] == [200.0] + [40.0] * count
    even = make_result(reports[1:])
    assert drop_invalid_reports(even, state, most_weight=5.0) is even


@pytest.mark.parametrize("epochs", [0.0, -1.0, 5.01, math.inf, math.nan])
def test_a_client_trains_some_of_the_ordered_epochs_and_no_more(epochs: float) -> None:
    claim = replace(make_report(), epochs=epochs)
    assert f"epochs {epochs:g}, which must be over 0 and at most the 5 ordered" in str(
        find_fault(claim, WEIGHTS, 100, make_order())
    )
    assert find_fault(replace(claim, epochs=0.1), WEIGHTS, 100, make_order()) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_low": 3.0}, "loss_low 3, which must be at most loss_high 2"),
        ({"loss_sum": 0.5, "loss_low": 0.1}, "loss_sum 0.5, which must be at least 1"),
        ({"over_count": 101.0, "over_sumsq": 500.0}, "over_count 101, which must be at most 100 samples"),
        ({"over_sumsq": 1.0}, "over_sumsq 1, which must be at least 5"),
    ],
)
def test_statistics_of_one_list_hang_together_but_for_their_noise(changes: dict[str, float], words: str) -> None:
    report, order = make_report(**changes), make_order(loss_threshold=1.0)  # type: ignore[arg-type]
    assert words in str(find_fault(report, WEIGHTS, 100, order, loss_noise=0.0))
    assert find_fault(report, WEIGHTS, 100, order, loss_noise=1.0) is None
    assert find_fault(report, WEIGHTS, 100, order) is None, "of a summary of one's own nothing is known"
    read = replace(report, summary=replace(report.summary, read_by_server=True))
    assert find_fault(read, WEIGHTS, 100, order, loss_noise=0.0) is None


def test_a_rule_that_compares_clients_has_the_last_word() -> None:
    def faults(reports: tuple[ClientReport, ...]) -> dict[str, str]:
        assert [report.client for report in reports] == ["c0", "c1"], "it sees the remaining valid reports"
        return {"c1": "a norm"}

    result = make_result([make_report("c0"), make_report("c1"), make_report("c2", trained=2**33)])
    state = state_of(100, 100, 100)
    actual = report_check.drop_invalid_reports(result, state, make_setup(state.ledger), faults)  # type: ignore[arg-type]
    assert [report.client for report in actual.reports] == ["c0"]
    assert {each.client: each.problem for each in actual.missing}["c1"] == "a norm"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trained": 2**33}, "trained 8.58993e+09, which must be at most 100"),
        ({"over_sumsq": 1e200}, "over_sumsq 1e+200"),
        ({"over_count": 2e4}, "over_count 20000"), ({"loss_high": 1e40}, "loss_high 1e+40"),
        ({"loss_count": 101.0}, "loss_count 101"), ({"weight": 101.0}, "weight 101"),
    ],
)  # fmt: skip
def test_a_report_beyond_the_clients_samples_is_refused(changes: dict[str, float], words: str) -> None:
    assert words in str(find_fault(make_report(**changes), WEIGHTS, 100))  # type: ignore[arg-type]


def test_what_the_server_itself_read_from_noise_is_no_claim() -> None:
    assert find_fault(make_report(loss_count=150.0, read_by_server=True), WEIGHTS, 100) is None
    assert find_fault(make_report(loss_count=150.0, trained=101, read_by_server=True), WEIGHTS, 100) is not None


def test_an_update_must_be_of_real_numbers() -> None:
    assert "complex" in str(find_fault(replace(make_report(), update=np.zeros(2, dtype=np.complex64)), WEIGHTS))


def test_a_sound_report_has_no_fault() -> None:
    assert find_fault(make_report(), WEIGHTS) is None
    assert find_fault(make_report(loss_low=-1.0, over_count=-0.5, loss_sum=-3.0), WEIGHTS) is None  # noise may do that


def test_a_count_may_be_off_by_the_noise_that_the_method_adds() -> None:
    """As much of it as epsilon 1 takes of the paper's statistics: no honest client is left out for its noise."""
    claim = make_report(over_count=2379.9)
    assert "over_count" in str(find_fault(claim, WEIGHTS, 375, loss_noise=5.0))
    assert find_fault(claim, WEIGHTS, 375, loss_noise=1169.0) is None
    assert "over_count" in str(find_fault(make_report(over_count=2e4), WEIGHTS, 375, loss_noise=1169.0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_must_be_finite(value: float) -> None:
    assert "finite" in str(find_fault(make_report(update=[0.0, value]), WEIGHTS))


@pytest.mark.parametrize("update", [[0.0], [0.0, 0.0, 0.0], []])
def test_an_update_must_have_the_shape_of_the_weights(update: list[float]) -> None:
    assert "shape" in str(find_fault(make_report(update=update), WEIGHTS))
    assert "shape" in str(find_fault(replace(make_report(), update=np.zeros((1, 2), dtype=np.float32)), WEIGHTS))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_must_be_a_finite_number_over_zero(weight: float) -> None:
    assert "weight" in str(find_fault(make_report(weight=weight), WEIGHTS))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["loss_low", "loss_high", "loss_sum", "loss_count", "over_count", "over_sumsq", "batch_s"]
)
def test_every_statistic_must_be_finite_and_is_named(name: str, value: float) -> None:
    assert name in str(find_fault(replace(make_report(), summary=make_summary(**{name: value})), WEIGHTS))
