"""Lines and bands over seeds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedbalancer.reporting.results import RunCurve, StoredRun, load
from fedbalancer.reporting.series import PANELS, Curve, drop_zeros, make_band, outcome_shares, round_band


def stored(seed: int, clocks: list[float], accuracies: list[float], deadlines: list[float]) -> StoredRun:
    evals = pl.DataFrame({"clock_s": clocks, "accuracy": accuracies})
    rounds = pl.DataFrame({"round": range(1, len(deadlines) + 1), "deadline_s": deadlines})
    return StoredRun(RunCurve("m", seed, evals), rounds=rounds)


def curve(seed: int, x: list[float], y: list[float]) -> Curve:
    return Curve(seed, np.array(x, dtype=np.float64), np.array(y))


def test_the_mean_covers_what_all_seeds_have_and_longer_seeds_go_on_by_themselves() -> None:
    band = make_band([curve(0, [10, 30], [0.0, 0.2]), curve(1, [20, 40], [0.5, 0.7])])
    assert band is not None
    assert (band.x[0], band.x[-1], band.seeds) == (20, 30, 2)
    assert (band.low[0], band.high[0], band.mean[0]) == pytest.approx((0.1, 0.5, 0.3))
    (tail,) = band.tails
    assert (tail.seed, tail.x.tolist(), band.end) == (1, [30, 40], 40)
    assert tail.y.tolist() == pytest.approx([0.6, 0.7])


def test_one_seed_is_drawn_as_it_is() -> None:
    band = make_band([curve(0, [10, 30], [0.1, 0.2])])
    assert band is not None
    assert band.x.tolist() == [10, 30]
    assert band.mean.tolist() == band.low.tolist() == [0.1, 0.2]


def test_rounds_without_a_finite_value_are_left_out() -> None:
    band = round_band([stored(0, [], [], [5.0, math.inf, 7.0])], "deadline_s")
    assert band is not None
    assert band.x.tolist() == [1, 3]
    assert round_band([stored(0, [], [], [math.inf])], "deadline_s") is None
    assert round_band([], "deadline_s") is None
    assert make_band([]) is None


def test_rounds_are_averaged_in_groups_over_what_all_seeds_have() -> None:
    runs = [stored(0, [], [], [1.0, 3.0, 5.0, 7.0]), stored(1, [], [], [3.0, 5.0, 7.0, 9.0, 100.0])]
    band = round_band(runs, "deadline_s", width=2)
    assert band is not None
    assert band.x.tolist() == [1.5, 3.5]
    assert (band.low.tolist(), band.mean.tolist(), band.high.tolist()) == ([2, 6], [3, 7], [4, 8])
    assert [(tail.seed, tail.x.tolist(), tail.y.tolist()) for tail in band.tails] == [(1, [3.5, 5], [8, 100])]


def test_a_control_that_is_always_zero_is_not_drawn() -> None:
    band = round_band([stored(0, [], [], [0.0, 0.0])], "deadline_s")
    assert band is not None
    assert drop_zeros(band) is None
    assert drop_zeros(None) is None


def test_shares_of_outcomes_add_up_to_one(comparison_folder: Path) -> None:
    results = load(comparison_folder)
    for method in results.methods:
        assert sum(outcome_shares(results.of(method)).values()) == pytest.approx(1.0)
    assert outcome_shares([]) == {}


def test_a_long_run_is_drawn_in_groups_of_rounds_and_a_noisy_column_in_longer_ones(comparison_folder: Path) -> None:
    results = load(comparison_folder)  # the longest run has 83 rounds
    widths = {panel.name: panel.width(results) for panel in PANELS if panel.figure}
    assert widths == {"completed": 5, "deadline": 1, "threshold": 1}
