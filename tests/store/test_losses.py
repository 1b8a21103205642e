"""What a round's row says of losses and deadlines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedbalancer as fb
from fedbalancer.core.types import ClientReport, Order, RoundPlan, RoundResult, Summary, Timings
from fedbalancer.store.rows import Losses, released_losses


def report(client: str, low: float, high: float, mean: float, count: float) -> ClientReport:
    summary = Summary(low, high, mean * count, count, 0.0, 0.0, trained=int(count), batch_s=1.0)
    return ClientReport(client, np.zeros(1, np.float32), 1.0, 1.0, summary, Timings())


def test_samples_count_in_the_mean_and_clients_in_the_ends() -> None:
    plan = RoundPlan(Order(1, 0.0, 10.0, 1, 1, 0), ("a", "b"), 2)
    result = RoundResult(plan, (report("a", 0.0, 4.0, 1.0, 10), report("b", 1.0, 2.0, 2.0, 30)), (), 1.0)
    assert released_losses(result) == pytest.approx((0.5, 1.75, 3.0))
    silent = report("a", 0.0, 0.0, 0.0, 0)
    assert released_losses(replace(result, reports=(silent,))) == Losses(None, None, None)


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
