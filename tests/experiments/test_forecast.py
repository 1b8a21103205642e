"""Forecasts: intervals from simulated runs, on a fleet that is as uncertain as its measurement."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting
from fedbalancer.experiments.forecast import forecast, parse_duration, shift, with_overhead
from fedbalancer.experiments.learned_fleet import learn
from fedbalancer.reporting.results import RunCurve

START = datetime(2026, 11, 19, 8, tzinfo=UTC)


def test_forecast_of_a_learned_fleet(tmp_path: Path) -> None:
    fb.run("synthetic", "fedavg+wfa", users=8, rounds=4, timing_only=True, out=tmp_path / "run")
    learn(tmp_path / "run").write(tmp_path / "mine.parquet")
    predicted = forecast(
        "synthetic", ["fedavg+wfa", "canter"], fleet=tmp_path / "mine.parquet", users=8, rounds=6, runs=3,
        clients_per_round=[2, 4], start=START, jobs=1, targets=[0.3, 0.99],
    )  # fmt: skip
    assert [row.label for row in predicted.rows] == [
        "fedavg+wfa, 2 clients", "fedavg+wfa, 4 clients", "canter, 2 clients", "canter, 4 clients"
    ]  # fmt: skip
    row = predicted.rows[2]
    assert row.seconds[0.3].median is not None
    assert row.seconds[0.99].reached == 0.0
    text = predicted.sentence(row, 0.3)
    assert text.startswith("canter, 2 clients: 30% on Thu 19 Nov 0")
    assert "between Thu 19 Nov" in text
    assert "if ever" in predicted.sentence(row, 0.99)
    hours = row.device_hours[0.3]
    assert hours.low < hours.median < hours.high
    assert {note.partition(":")[0] for note in predicted.notes} >= {"data", "future", "horizon", "chance"}
    assert predicted.to_json()["rows"][0]["targets"]["0.3"]["seconds"]["reached"] == 1.0
    again = forecast(
        "synthetic", ["canter"], fleet=tmp_path / "mine.parquet", users=8, rounds=6, runs=3, clients_per_round=[2],
        start=START, jobs=1, targets=[0.3],
    )  # fmt: skip
    assert again.rows[0].seconds[0.3] == row.seconds[0.3]


def test_wrong_options_are_refused() -> None:
    fleet = fb.Fleet.synthetic(4)
    for options, message in (
        ({"runs": 1}, "runs = 1 must be at least 2"),
        ({"level": 1.0}, "level = 1.0 must be between 0 and 1"),
        ({"fleet": fb.Fleet.paper()}, "a forecast needs a fleet with devices"),
    ):
        with pytest.raises(BadSetting, match=message):
            forecast("synthetic", ["canter"], **{"fleet": fleet, **options})
    for text in ("soon", "-3h", "0"):
        with pytest.raises(BadSetting, match="must be a duration"):
            parse_duration(text)


def test_hours_are_relative_to_the_start() -> None:
    fleet = fb.Fleet([fb.Device(id="ann", online=[(22 * 3600, 24 * 3600), (0, 6 * 3600)])])
    nights = fleet.availability(["ann"])
    for start_h in (0, 5, 23):
        moved = shift(fleet, start_h * 3600.0).availability(["ann"])
        for hour in range(24):
            at_s = 3600.0 * hour + 1800
            assert moved.is_available("ann", at_s) == nights.is_available("ann", at_s + 3600.0 * start_h)


def test_seconds_between_rounds_are_added_to_the_clock() -> None:
    rounds = pl.DataFrame({"round": [1, 2], "start_s": [0.0, 10.0], "end_s": [10.0, 20.0]})
    evals = pl.DataFrame({"round": [0, 2], "start_s": [0.0, 10.0], "clock_s": [0.0, 20.0]})
    later = with_overhead(RunCurve("canter", 0, evals, traffic=rounds), 5.0)
    assert later.evals["clock_s"].to_list() == [0.0, 30.0]
    assert later.traffic is not None
    assert later.traffic["start_s"].to_list() == [0.0, 15.0]
    assert later.traffic["end_s"].to_list() == [15.0, 30.0]
