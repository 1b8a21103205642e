"""Rows are computed from a round: the work of the devices, and the losses and deadlines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_report, make_result

import fedbalancer as fb
from fedbalancer.core.types import ClientReport, FailedClient, Order, RoundPlan, RoundResult, Summary, Timings
from fedbalancer.store.rows import Losses, count_sample_passes, sum_device_seconds, summarize_losses

SPENT = Timings(download_s=10.0, forward_s=5.0, train_s=40.0, upload_s=20.0, paused_s=99.0)


def round_of(missing: FailedClient | None = None, **order: float) -> RoundResult:
    report = replace(make_report("ann", trained=30), timings=SPENT, epochs=5.0)
    result = make_result([report], deadline_s=60.0, epochs=5, batch_size=10, **order)
    return replace(result, missing=() if missing is None else (missing,))


def test_a_device_is_busy_while_it_downloads_looks_trains_and_uploads_but_not_while_it_pauses() -> None:
    assert sum_device_seconds(round_of()) == 75.0


def test_who_misses_the_deadline_works_until_then_and_who_is_late_for_the_quorum_to_its_end() -> None:
    assert sum_device_seconds(round_of(FailedClient("bob", "upload", SPENT, 30))) == 75.0 + 60.0
    assert sum_device_seconds(round_of(FailedClient("bob", "late", SPENT, 30))) == 75.0 + 75.0
    assert sum_device_seconds(round_of(FailedClient("bob", "unavailable"))) == 75.0


def test_samples_count_once_for_every_epoch() -> None:
    assert count_sample_passes(round_of()) == 30 * 5


def test_less_than_an_epoch_counts_what_was_seen() -> None:
    report = replace(make_report("ann", trained=12), epochs=0.4)
    assert count_sample_passes(make_result([report])) == 12


@pytest.mark.parametrize(
    ("why", "train_s", "passes"),
    [("train", 90.0, 75.0), ("upload", 40.0, 150.0), ("late", 90.0, 150.0), ("download", 0.0, 0.0)],
)
def test_work_in_vain_counts_as_far_as_there_was_time_for_it(why: str, train_s: float, passes: float) -> None:
    """After download and forward pass, 45 of the 60 s until the deadline are left."""
    missing = FailedClient("bob", why, replace(SPENT, train_s=train_s), 30)
    assert count_sample_passes(round_of(missing)) == pytest.approx(150.0 + passes)


def test_epochs_that_are_cut_short_count_what_they_train() -> None:
    """Oort trains one batch of 10 an epoch: five different ones at most."""
    assert count_sample_passes(round_of(epoch_batches=1)) == 10 * 5


def report(client: str, low: float, high: float, mean: float, count: float) -> ClientReport:
    summary = Summary(low, high, mean * count, count, 0.0, 0.0, trained=int(count), batch_s=1.0)
    return ClientReport(client, np.zeros(1, np.float32), 1.0, 1.0, summary, Timings())


def test_samples_count_in_the_mean_and_clients_in_the_ends() -> None:
    plan = RoundPlan(Order(1, 0.0, 10.0, 1, 1, 0), ("a", "b"), 2)
    result = RoundResult(plan, (report("a", 0.0, 4.0, 1.0, 10), report("b", 1.0, 2.0, 2.0, 30)), (), 1.0)
    assert summarize_losses(result) == pytest.approx((0.5, 1.75, 3.0))
    silent = report("a", 0.0, 0.0, 0.0, 0)
    assert summarize_losses(replace(result, reports=(silent,))) == Losses(None, None, None)


def test_a_run_records_dl_and_dh_where_its_method_has_them() -> None:
    options = {"users": 12, "rounds": 12, "settings": {"clients_per_round": 6}}
    ours = fb.run("synthetic", method="fedbalancer", **options).rounds  # type: ignore[arg-type]
    known = ours.drop_nulls("deadline_low_s")
    ratio = known["deadline_ratio"]
    assert 0 < known.height < ours.height, "before most clients are known there is neither"
    between = known["deadline_low_s"] + (known["deadline_high_s"] - known["deadline_low_s"]) * ratio
    assert between.to_list() == pytest.approx(known["deadline_s"].to_list())
    assert (ours["loss_low"] <= ours["loss_mean"]).all()
    fixed = fb.run("synthetic", method="fedavg+1t", **options).rounds  # type: ignore[arg-type]
    assert fixed["deadline_high_s"].null_count() == fixed.height
