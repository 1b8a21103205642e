"""The logs of the phones become a table; the lag is the delay of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedbalancer.paper.testbed.phone_logs import PHONES, SCHEMA, gather, lag_of, latencies
from fedbalancer.reporting.plotting import plot_latencies, write_figure


def row(round: int, client: str, real_s: float, due_s: float = 20.0) -> dict[str, Any]:
    return {
        "round": round, "client": client, "download_s": 4.0, "batch_s": 0.1, "upload_s": 6.0, "batches": 10,
        "samples": 30, "forward_s": 0.0, "busy_s": due_s - 10.0, "order_s": 1.0, "real_s": real_s,
        "arrives_s": max(real_s, due_s), "lag_s": max(real_s - due_s, 0.0),
    }  # fmt: skip


def test_logs_become_a_table_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    logs, run = tmp_path / "logs", tmp_path / "run"
    logs.mkdir()
    run.mkdir()
    (logs / "b.jsonl").write_text(json.dumps(row(1, "b", 3.0)) + "\n" + '{"round": 2, "cli')
    (logs / "a.jsonl").write_text(json.dumps(row(2, "a", 3.0)) + "\n" + json.dumps(row(1, "a", 3.0)) + "\n")
    frame = gather(logs, run)
    assert frame.select("round", "client").rows() == [(1, "a"), (1, "b"), (2, "a")]
    assert pl.read_parquet(run / PHONES).equals(frame)
    assert not logs.exists()


def test_a_machine_that_keeps_up_has_no_lag() -> None:
    frame = pl.DataFrame([row(n, "a", 5.0) for n in range(20)], schema=SCHEMA)
    lag = lag_of(frame, 5.0)
    assert (lag.late, lag.p90_s, lag.suggested_speed) == (0.0, 0.0, None)
    assert lag.words() == "fast enough in 100% of the phones' rounds"


def test_a_machine_that_takes_twice_as_long_is_told_half_the_speed() -> None:
    frame = pl.DataFrame([row(n, "a", 40.0) for n in range(20)], schema=SCHEMA)
    lag = lag_of(frame, 8.0, stood_s=77.0)
    assert (lag.late, lag.worst_s, lag.p90_share) == (1.0, 20.0, 1.0)
    assert lag.suggested_speed == pytest.approx(4.0)
    assert "--speed 4" in lag.words()
    assert "77 s" in lag.words()


def test_nobody_who_took_part_is_no_lag() -> None:
    assert lag_of(pl.DataFrame(schema=SCHEMA), 5.0).late == 0.0


def test_the_figure_has_every_phone_with_its_least_mean_and_most(tmp_path: Path) -> None:
    rows = [row(1, "slow", 1.0, 50.0), row(2, "slow", 1.0, 70.0), row(1, "quick", 1.0, 12.0)]
    frame = pl.DataFrame(rows, schema=SCHEMA)
    (slow, training, network), quick = latencies(frame)
    assert (slow, quick[0]) == ("slow", "quick")
    assert training.tolist() == [40.0, 50.0, 60.0]
    assert network.tolist() == [10.0, 10.0, 10.0]
    file = write_figure(plot_latencies(latencies(frame), "Latency"), tmp_path / "latency.png")
    assert file.read_bytes().startswith(b"\x89PNG")
