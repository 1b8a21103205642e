"""The headline says what was measured, also when FedBalancer lost."""

from __future__ import annotations

import polars as pl

from fedbalancer.reporting import Comparison, RunCurve, score
from fedbalancer.reporting.summary import write_headline


def compared(times_s: dict[str, list[float | None]]) -> Comparison:
    """Methods by their seconds to an accuracy of 0.8 on each seed; None: they end below it."""
    runs = []
    for method, of_seeds in times_s.items():
        for seed, time_s in enumerate(of_seeds):
            points = {"start_s": [1.0], "clock_s": [time_s or 50.0], "accuracy": [0.8 if time_s else 0.5]}
            runs.append(RunCurve(method, seed, pl.DataFrame(points)))
    return score(runs, dict.fromkeys(range(9), 100.0), rule="paper")


def test_a_clear_win_names_factor_target_and_seeds() -> None:
    text = write_headline(compared({"fedavg+1t": [100, 100, 100], "fedbalancer": [50, 51, 49]}))
    assert text.startswith(
        "fedbalancer reached the target accuracy of 80.0% first: 2.00 times as fast as the best FedAvg"
    )
    assert "mean of 3 seeds" in text
    assert "chance" not in text


def test_a_win_within_chance_says_so() -> None:
    assert "this can be chance" in write_headline(compared({"fedavg+1t": [100, 100], "fedbalancer": [40, 99]}))
    two = write_headline(compared({"fedavg+1t": [100, 100], "fedbalancer": [50, 51]}))
    assert "2 seeds are too few for an interval: this can be chance" in two
    assert "One seed cannot separate this from chance" in write_headline(
        compared({"fedavg+1t": [100], "fedbalancer": [50]})
    )


def test_another_winner_says_that_fedbalancer_did_not_win() -> None:
    text = write_headline(compared({"fedavg+1t": [100], "oort": [25], "fedbalancer": [50]}))
    assert text.startswith("oort reached the target")
    assert "fedbalancer follows at 2.00 times the speed" in text


def test_no_win_at_all_is_said() -> None:
    text = write_headline(compared({"fedavg+1t": [80], "fedbalancer": [100]}))
    assert text.startswith("No method reached the target accuracy of 80.0% sooner than the best FedAvg variant")
    assert "fedbalancer was not the fastest: 0.80 times" in text


def test_a_target_never_or_seldom_reached_is_said() -> None:
    assert "it never reached the target" in write_headline(compared({"fedavg+1t": [80], "fedbalancer": [None]}))
    assert "only on 1 of 2 seeds" in write_headline(compared({"fedavg+1t": [90, 90], "fedbalancer": [10, None]}))


def test_a_win_on_some_seeds_gives_no_interval_and_says_why() -> None:
    text = write_headline(compared({"fedavg+1t": [90, 90, 90], "fedbalancer": [10, 10, None]}))
    assert "there is no interval" in text
    assert "One seed" not in text
    assert "this can be chance" not in text


def test_ties_name_all_winners() -> None:
    assert write_headline(compared({"fedavg+1t": [80], "oort": [40], "fedbalancer": [40]})).startswith(
        "oort and fedbalancer reached"
    )


def test_without_fedavg_the_reference_is_named() -> None:
    assert "as fast as the reference prox+1t" in write_headline(compared({"prox+1t": [80], "fedbalancer": [40]}))


def test_one_method_or_none_is_said() -> None:
    assert "is the only method" in write_headline(compared({"fedbalancer": [80]}))
    assert write_headline(score([], {}, methods=["fedbalancer"])).startswith("Nothing can be scored yet")
