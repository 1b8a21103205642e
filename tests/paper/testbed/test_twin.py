"""The twin: made-up rounds that follow the rule are predicted to the second, and what deviates is the error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.work import AllOrNothing, WholeEpochs
from fedbalancer.core.types import Order, RoundPlan
from fedbalancer.paper.testbed.twin import BedRound, read_rounds, twin, with_measured_transfers

EPOCHS, BATCH = 3, 10
SECONDS = st.floats(0.01, 50.0)
ROWS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS, st.integers(1, 80)), min_size=1, max_size=6)


def frame(rows: list[tuple[float, float, float, int]]) -> pl.DataFrame:
    """A row a phone: seconds a batch, seconds of a way, seconds of the forward pass, samples."""
    columns: dict[str, Any] = {"client": [f"c{n}" for n in range(len(rows))]}
    for place, name in enumerate(("batch_s", "download_s", "forward_s", "samples")):
        columns[name] = [row[place] for row in rows]
    return pl.DataFrame(columns | {"upload_s": columns["download_s"]})


def plan(count: int, deadline_s: float, quorum: int) -> RoundPlan:
    order = Order(1, 0.0, deadline_s, EPOCHS, BATCH, 0)
    return RoundPlan(order, tuple(f"c{n}" for n in range(count)), quorum)


def arrival_s(row: tuple[float, float, float, int], epochs: int) -> float:
    batch_s, way_s, forward_s, samples = row
    return 2 * way_s + forward_s + epochs * math.ceil(samples / BATCH) * batch_s


@given(ROWS)
def test_who_waits_for_all_is_predicted_by_the_last_arrival(rows: list[tuple[float, float, float, int]]) -> None:
    arrivals = [arrival_s(row, EPOCHS) for row in rows]
    everybody = frozenset(f"c{n}" for n in range(len(rows)))
    bed = BedRound(plan(len(rows), math.inf, len(rows)), everybody, max(arrivals), frame(rows))
    found = twin([bed], AllOrNothing())
    assert found.agreement == 1.0
    assert found.mean_error_s == pytest.approx(0.0, abs=1e-9)


@given(ROWS, st.floats(1.0, 300.0))
def test_a_deadline_takes_those_whose_epochs_fit(
    rows: list[tuple[float, float, float, int]], deadline_s: float
) -> None:
    fits = {f"c{n}" for n, row in enumerate(rows) if arrival_s(row, 1) <= deadline_s - 1e-6}
    out = {f"c{n}" for n, row in enumerate(rows) if arrival_s(row, 1) > deadline_s + 1e-6}
    if len(fits) + len(out) < len(rows):
        return  # on the edge, where rounding decides
    bed = BedRound(plan(len(rows), deadline_s, len(rows)), frozenset(fits), deadline_s, frame(rows))
    found = twin([bed], WholeEpochs())
    assert found.agreement == 1.0
    assert found.rounds[0].twin_completed == len(fits)
    assert found.rounds[0].twin_s <= deadline_s


def test_the_error_is_what_the_bed_was_off() -> None:
    rows = [(0.5, 2.0, 0.0, 20), (1.0, 3.0, 0.0, 20)]  # arrive after 7 and 12 s
    late = BedRound(plan(2, math.inf, 2), frozenset({"c0", "c1"}), 15.0, frame(rows))
    lost = BedRound(plan(2, math.inf, 2), frozenset({"c0"}), 11.0, frame(rows))
    found = twin([late, lost], AllOrNothing())
    assert found.agreement == 0.75
    assert found.mean_error_s == pytest.approx((3 + 1) / 2)
    assert found.clock_error_share == pytest.approx((26 - 24) / 26)
    assert "75.0%" in found.words()
    assert len(found.to_json()["rounds"]) == 2


def test_a_phone_that_never_got_its_order_is_predicted_to_miss() -> None:
    bed = BedRound(plan(2, 20.0, 2), frozenset({"c0"}), 20.0, frame([(0.5, 2.0, 0.0, 20)]))
    found = twin([bed], AllOrNothing())
    assert found.agreement == 1.0
    assert found.rounds[0].twin_s == 20.0


def test_a_run_folder_is_read_with_the_network_as_it_was(tmp_path: Path) -> None:
    phones = pl.DataFrame({
        "round": [1, 1], "client": ["a", "b"], "download_s": [1.0, 1.0], "batch_s": [0.5, 0.5], "upload_s": [1.0, 1.0],
        "batches": [6, 6], "samples": [20, 20], "forward_s": [0.0, 0.0], "busy_s": [3.0, 3.0],
        "real_s": [1.0, 1.0], "arrives_s": [5.0, 9.0], "lag_s": [0.0, 0.0],
    })  # fmt: skip
    clients = pl.DataFrame({
        "round": [1, 1], "client": ["a", "b"], "download_s": [1.5, 0.0], "upload_s": [1.5, 0.0],
        "outcome": ["completed", "train"],
    })  # fmt: skip
    ways = with_measured_transfers(phones, clients)
    assert ways["download_s"].to_list() == [1.5, 3.0]
    clients.write_parquet(tmp_path / "clients.parquet")
    pl.DataFrame({"round": [1], "loss_threshold": [0.0], "deadline_s": [8.0]}).write_parquet(
        tmp_path / "rounds.parquet"
    )
    events = [
        {"event": "round", "round": 1, "cohort": ["a", "b"], "quorum": 2},
        {"event": "round closed", "round": 1, "seconds": 8.1},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    order = Order(0, 0.0, 0.0, EPOCHS, BATCH, 0)
    (bed,) = read_rounds(tmp_path, phones, order)
    found = twin([bed], AllOrNothing())
    assert found.rounds[0].bed_completed == found.rounds[0].twin_completed == 1
    assert found.mean_error_s == pytest.approx(0.1)
