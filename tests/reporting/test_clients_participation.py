"""A client whose report is late has two rows, and is counted once."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from builders import make_report, make_result

from fedbalancer.core.types import FailedClient, RoundResult, Timings
from fedbalancer.reporting.clients import add_selections, average_phase_times, count_outcomes, count_selections
from fedbalancer.store.rows import ClientRow, count_sample_passes, sum_device_seconds

SPENT = Timings(2.0, 0.0, 50.0, 3.0)


def two_rounds() -> tuple[RoundResult, RoundResult]:
    """c0 makes round 1, c1 comes in round 2."""
    first = make_result([make_report("c0")], round=1)
    first = replace(first, missing=(FailedClient("c1", "under way", samples=20),), under_way=("c1",))
    second = make_result([replace(make_report("c1"), staleness=1, timings=SPENT)], round=2)
    return first, replace(second, plan=replace(second.plan, cohort=()))


def rows() -> pl.LazyFrame:
    return pl.LazyFrame([row._asdict() for result in two_rounds() for row in ClientRow.from_round(result)])


POPULATION = pl.DataFrame({"client": ["c0", "c1"], "device": ["slow", "fast"], "clock_s": [200.0, 200.0]})
ROUNDS = pl.DataFrame({"round": [1, 2], "start_s": [0.0, 70.0], "end_s": [70.0, 140.0]})


def test_its_rows_say_when_it_was_asked_and_when_it_came_with_all_its_seconds() -> None:
    found = [(r["round"], r["client"], r["outcome"], r["train_s"]) for r in rows().collect().iter_rows(named=True)]
    assert found == [(1, "c0", "completed", 0.0), (1, "c1", "under way", 0.0), (2, "c1", "joined", 50.0)]


def test_it_ends_in_one_way_and_was_selected_once() -> None:
    assert dict(count_outcomes(rows()).collect().iter_rows()) == {"completed": 1, "joined": 1}
    assert dict(count_selections(rows(), POPULATION).select("client", "times").collect().iter_rows()) == {
        "c0": 1,
        "c1": 1,
    }
    assert add_selections(POPULATION, ROUNDS, rows())["selected"].to_list() == [1, 1]


def test_its_times_are_counted_once() -> None:
    found = average_phase_times(rows(), ROUNDS, POPULATION).filter(pl.col("device") == "fast").collect().to_dicts()
    assert [(row["clients"], row["train_s"]) for row in found] == [(1, 50.0)]
    first, second = two_rounds()
    assert (sum_device_seconds(first), sum_device_seconds(second)) == (0.0, 55.0)
    assert (count_sample_passes(first), count_sample_passes(second)) == (50.0, 50.0)
