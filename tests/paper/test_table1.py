"""FedBalancer-A and -S: the best of each seed, and beside it what would have been chosen without looking."""

from __future__ import annotations

import polars as pl
import pytest

from fedbalancer.paper.items.table1 import CROSS, best_rows, grid_methods

NAMES = list(grid_methods())[:3]


def scores(values: dict[str, list[tuple[float, float]]]) -> pl.DataFrame:
    """Speed-up and accuracy of every method, a pair for each seed; a speed-up of 0 was never reached."""
    rows = [
        {
            "task": "har", "variant": "v", "scale": "small", "clients": 3, "group": "all", "rule": "fair",
            "method": name, "seed": seed, "target_share": 1.0, "target": 0.8, "budget_s": 100.0,
            "censored": not speed, "censored_s": 100.0 / speed if speed else 200.0, "reference_s": 100.0,
            "reference_reached": True, "ratio": speed or 0.5, "accuracy": accuracy, "sample_passes": 1.0,
            "device_s": 1.0, "up_bytes": 1.0, "client_median": None, "client_worst_decile": None, "client_jain": None,
        }
        for name, pairs in values.items()
        for seed, (speed, accuracy) in enumerate(pairs)
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def by_row(found: pl.DataFrame, column: str) -> dict[str, float]:
    return dict(zip(found["method"], found[column], strict=True))


def test_the_best_of_each_seed_flatters_and_the_other_seeds_do_not() -> None:
    noise = {
        NAMES[0]: [(3.0, 0.9), (1.0, 0.7), (1.0, 0.7)],
        NAMES[1]: [(1.0, 0.7), (3.0, 0.9), (1.0, 0.7)],
        NAMES[2]: [(1.0, 0.7), (1.0, 0.7), (3.0, 0.9)],
    }
    rows, chosen = best_rows(scores(noise))
    assert by_row(rows, "ratio")["fedbalancer-S"] == pytest.approx(3.0)
    assert by_row(rows, "ratio")[f"fedbalancer-S{CROSS}"] == pytest.approx(1.0)
    assert by_row(rows, "accuracy")["fedbalancer-A"] == pytest.approx(0.9)
    assert by_row(rows, "accuracy")[f"fedbalancer-A{CROSS}"] == pytest.approx(0.7)
    assert chosen.filter(pl.col("row") == "fedbalancer-S").height == 3


def test_one_that_never_arrived_is_never_the_fastest() -> None:
    rows, _ = best_rows(scores({NAMES[0]: [(0.0, 0.5)], NAMES[1]: [(0.2, 0.4)]}))
    assert by_row(rows, "ratio")["fedbalancer-S"] == pytest.approx(0.2)
    assert by_row(rows, "accuracy")["fedbalancer-A"] == pytest.approx(0.5)


def test_without_the_grid_there_are_no_such_rows() -> None:
    rows, chosen = best_rows(scores({"fedbalancer": [(2.0, 0.8)], "prox+1t": [(1.0, 0.7)]}))
    assert not rows.height
    assert not chosen.height
