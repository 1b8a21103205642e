"""The value of a trial: the time until a target is held, or the accuracy at the budget."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from fedbalancer.core.metrics import Metric
from fedbalancer.experiments.sweep.objective import (
    Reference,
    held_levels,
    reference,
    time_ratio,
    value_at_budget,
)
from fedbalancer.reporting import RunCurve


def evals(*accuracies: float, step_s: float = 10.0) -> RunCurve:
    clock = [step_s * place for place in range(len(accuracies))]
    grid = pl.DataFrame({"start_s": clock, "clock_s": clock, "accuracy": accuracies})
    lucky = pl.DataFrame({"start_s": [0.0], "clock_s": [5.0], "accuracy": [1.0]})
    return RunCurve("fedbalancer", 0, lucky, grid=grid)


def test_only_the_grid_within_the_budget_counts_and_one_touch_does_not() -> None:
    found = held_levels(evals(0.0, 0.9, 0.0, 0.6, 0.6, 0.6, 0.9), 50.0)
    assert [at_s for at_s, _ in found] == [20.0, 30.0, 40.0, 50.0]
    assert [level for _, level in found] == pytest.approx([0.3, 0.5, 0.4, 0.6])


def test_the_reference_gives_target_and_time() -> None:
    found = reference(evals(0.0, 0.3, 0.6, 0.9, 0.9, 0.9), 50.0, 0.5)
    assert found == Reference(pytest.approx(0.45), pytest.approx(25.0))  # .3 is held at 20 s, .6 at 30 s
    assert reference(evals(0.5), 50.0, 1.0) is None
    assert reference(evals(0.0, 0.0, 0.0, 0.0), 50.0, 1.0) is None


def test_time_is_in_that_of_the_reference() -> None:
    against = Reference(0.5, 40.0)
    assert time_ratio(evals(0.5, 0.5, 0.5), 50.0, against) == pytest.approx(0.5)
    assert time_ratio(evals(0.7, 0.7, 0.7), 50.0, against) < 0.5  # within one step of the grid, too
    near, far = (time_ratio(evals(*[level] * 6), 50.0, against) for level in (0.45, 0.1))
    assert 50 / 40 < near < far


def test_accuracy_is_that_at_the_budget() -> None:
    assert value_at_budget(evals(0.1, 0.2, 0.3, 0.9), 20.0) == pytest.approx(0.2)
    assert value_at_budget(evals(0.1), 20.0) is None


def test_of_an_error_the_lowest_value_is_the_best() -> None:
    errors = pl.DataFrame({
        "start_s": [0.0] * 5, "clock_s": [10.0, 20.0, 30.0, 40.0, 50.0], "mae": [4.0, 3.0, 2.0, 1.0, 1.0],
    })  # fmt: skip
    run = RunCurve("m", 0, errors, grid=errors, metric=Metric("mae"))
    assert value_at_budget(run, 50.0) == pytest.approx(4 / 3)
    own = reference(run, 50.0, 0.5)
    assert own is not None
    assert own.target == pytest.approx(8 / 3)
    assert 30.0 <= own.time_s <= 40.0
    assert time_ratio(run, 50.0, own) == 1.0
    worse = replace(run, grid=errors.with_columns(pl.col("mae") + 3))
    assert time_ratio(worse, 50.0, own) > 50.0 / own.time_s
