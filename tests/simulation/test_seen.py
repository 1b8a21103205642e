"""With which losses samples were trained on: recorded for whoever reads, told to nobody, and changing nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbalancer as fb
from fedbalancer.core.types import TrainResult
from fedbalancer.simulation.seen import seen_losses

COLUMNS = ["seen_loss_p10", "seen_loss_p50", "seen_loss_p90"]


def trained(*losses: float) -> TrainResult:
    return TrainResult("ann", np.zeros(1, dtype=np.float32), np.arange(len(losses)), np.array(losses))


@given(st.lists(st.lists(st.floats(0.0, 50.0), max_size=20), max_size=5))
def test_it_is_of_all_samples_together_whoever_has_them(parts: list[list[float]]) -> None:
    every = [loss for part in parts for loss in part]
    found = seen_losses([trained(*part) for part in parts])
    assert found == seen_losses([trained(*every)])
    if not every:
        assert found is None
        return
    assert found is not None
    assert min(every) <= found[0] <= found[1] <= found[2] <= max(every)
    assert found[1] == pytest.approx(float(np.median(every)))


def test_what_is_not_a_number_is_left_out() -> None:
    assert seen_losses([trained(float("nan"), 1.0, float("inf"))]) == (1.0, 1.0, 1.0)


def test_a_run_records_it_and_the_threshold_shows_in_it(tmp_path: Path) -> None:
    fb.run("synthetic", method="fedbalancer[w=2]", rounds=24, out=tmp_path / "run")
    rounds = pl.read_parquet(tmp_path / "run" / "rounds.parquet")
    trains = rounds.filter(pl.col("completed") > 0)
    assert trains.height
    assert trains.select(COLUMNS).null_count().sum_horizontal().item() == 0
    assert trains.filter(pl.col("seen_loss_p10") > pl.col("seen_loss_p90")).height == 0
    before = trains.filter(pl.col("loss_threshold") == 0)["seen_loss_p10"].mean()
    after = trains.filter(pl.col("loss_threshold") > 0.1)["seen_loss_p10"].mean()
    assert after > 2 * before, "samples that teach nothing any more are left out"  # type: ignore[operator]


def test_a_run_of_the_clock_alone_has_none() -> None:
    found = fb.run("synthetic", method="fedavg+1t", rounds=3, timing_only=True)
    assert found.rounds.select(COLUMNS).null_count().sum_horizontal().item() == 3 * found.rounds.height
