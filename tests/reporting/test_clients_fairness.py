"""Fairness between clients in reports."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fedbalancer.reporting import RunCurve, score
from fedbalancer.reporting.clients import add_selections, gini, jain, mean_fairness, measure_fairness
from fedbalancer.reporting.tables import markdown_table


def population(selected: list[int], accuracy: list[float | None]) -> pl.DataFrame:
    count = len(selected)
    return pl.DataFrame({
        "client": [f"c{number}" for number in range(count)], "samples": [10] * count,
        "device": ["slow"] * (count // 2) + ["mid"] * (count - count // 2), "clock_s": [100.0] * count,
        "accuracy": accuracy, "selected": selected,
    }, schema_overrides={"accuracy": pl.Float64})  # fmt: skip


def test_median_worst_decile_and_jains_index_are_over_the_clients() -> None:
    accuracies = np.linspace(0.0, 1.0, 11)
    found = measure_fairness(population([1] * 11, accuracies.tolist()))
    assert found is not None
    assert (found.median, found.worst_decile) == (pytest.approx(0.5), pytest.approx(0.1))
    assert found.jain == pytest.approx(accuracies.sum() ** 2 / (11 * (accuracies**2).sum()))


def test_a_gain_bought_from_the_slow_phones_shows() -> None:
    found = measure_fairness(population([0, 0, 1, 5, 6, 8], [0.2, 0.3, 0.4, 0.8, 0.9, 0.9]))
    assert found is not None
    assert found.by_device["slow"] == {"clients": 0.5, "places": 0.05, "accuracy": 0.3}
    assert (found.never, found.places) == (pytest.approx(1 / 3), [0, 3.0, 8])
    assert found.gini == pytest.approx(gini([0, 0, 1, 5, 6, 8]))


def test_the_coefficients_at_their_ends() -> None:
    assert jain([0.7] * 5) == pytest.approx(1.0)
    assert jain([0.0, 0.0]) == 1.0
    assert gini([0, 0]) == 0.0
    assert gini([1, 3]) == pytest.approx(0.25)


def test_clients_that_were_not_evaluated_are_left_out_of_accuracies_but_not_of_places() -> None:
    found = measure_fairness(population([2, 0], [0.5, None]))
    assert found is not None
    assert (found.median, found.never) == (0.5, 0.5)
    none = measure_fairness(population([2, 0], [None, None]))
    assert none is not None
    assert (none.median, none.worst_decile, none.jain) == (None, None, None)
    assert measure_fairness(None) is None
    assert mean_fairness([]).median is None


def test_selections_are_counted_until_the_clients_were_evaluated() -> None:
    rounds = pl.DataFrame({"round": [1, 2, 3], "end_s": [50.0, 100.0, 150.0]})
    ends = ["completed", "under way", "completed", "train", "completed", "joined"]
    clients = pl.DataFrame(
        {"round": [1, 1, 2, 3, 3, 2], "client": ["c0", "c1", "c0", "c2", "c0", "c1"], "outcome": ends}
    ).lazy()
    before = population([0, 0, 0], [0.1, 0.2, 0.3]).drop("selected")
    assert add_selections(before, rounds, clients)["selected"].to_list() == [2, 1, 0]


def test_the_table_has_the_clients_where_they_were_recorded() -> None:
    times = [10.0 * place for place in range(11)]
    grid = pl.DataFrame({"start_s": times, "clock_s": times, "accuracy": [0.5] * 11})
    clients = population([0, 4], [0.25, 0.75])
    run = RunCurve("fedavg+1t", 0, grid.clear(), end_s=100.0, grid=grid, population=clients)
    text = markdown_table(score([run], {0: 100.0}))
    assert "| fedavg+1t | 0.500 | **0.300** | 0.800 | 50% | 0.50 | 50% → 0% | 0.250 |" in text.splitlines()
    bare = RunCurve("fedavg+1t", 0, grid.clear(), end_s=100.0, grid=grid)
    assert "The clients" not in markdown_table(score([bare], {0: 100.0}))
