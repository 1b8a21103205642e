"""Shadow policies: replays are exact where the seconds were recorded, and contain the truth where they were not."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.experiments.shadow import in_hours, shadow, shadow_lines
from fedbalancer.reporting.dashboard import open_dashboard

FLEET = fb.Fleet.synthetic(12, bandwidth=0.05, seed=5)
METHODS = ["fedavg+wfa", "fedavg+1t", "fedavg[deadline=.7T]", "prox+1t"]


def run(method: str, out: Path | None = None, rounds: int = 12) -> fb.RunResult:
    return fb.run("synthetic", method, users=12, rounds=rounds, timing_only=True, devices=FLEET, out=out,
                  settings={"clients_per_round": 4})  # fmt: skip


def test_methods_that_select_the_same_clients_are_replayed_exactly(tmp_path: Path) -> None:
    run("fedavg+wfa", tmp_path / "run")
    replayed = shadow(tmp_path / "run", METHODS)
    assert replayed.error < 1e-9
    for row in replayed.rows:
        truth = run(row.method)
        # A deadline depends on speeds measured before the first round, which a recording replaces by means.
        assert row.typical_s == pytest.approx(truth.clock_s, rel=0.02)
        assert row.known == 1.0
        assert row.low_s <= row.typical_s * (1 + 1e-9)
        assert row.typical_s <= row.high_s * (1 + 1e-9)


@pytest.mark.parametrize("method", ["canter", "fedavg+1t+fedcs"])
def test_bounds_contain_the_truth_of_other_selections(tmp_path: Path, method: str) -> None:
    run("fedavg+wfa", tmp_path / "run", 20)
    row = shadow(tmp_path / "run", [method]).rows[0]
    assert not row.same_clients
    assert row.known < 1.0
    assert 0.98 * row.low_s <= run(method, rounds=20).clock_s <= 1.02 * row.high_s


def test_recommends_only_what_the_bounds_support(tmp_path: Path) -> None:
    run("fedavg+wfa", tmp_path / "run")
    replayed = shadow(tmp_path / "run", [*METHODS, "canter"])
    assert replayed.recommendation == "canter"
    assert replayed.lines()[-1] == "recommended: canter"
    reasons = {row.method: replayed.why_not(row) for row in replayed.rows}
    assert reasons["fedavg+wfa"] == "its upper bound saves no time"
    assert "fewer reports" in reasons["fedavg+1t"]
    backwards = shadow(_recorded(tmp_path, "canter"), ["fedavg+wfa"])
    assert backwards.recommendation is None
    assert backwards.lines()[-1].startswith("no recommendation")
    assert set(backwards.to_json()) >= {"error", "recommendation", "methods", "recorded_s"}


def _recorded(folder: Path, method: str) -> Path:
    run(method, folder / method)
    return folder / method


def test_client_that_never_answered_has_wide_bounds(tmp_path: Path) -> None:
    place = _recorded(tmp_path, "fedavg+1t")
    table = pl.read_parquet(place / "clients.parquet")
    late = pl.col("outcome") != "completed"
    assert table.filter(late).height
    columns = ("download_s", "forward_s", "train_s", "upload_s")
    table.with_columns(
        *[pl.when(late).then(0.0).otherwise(name).alias(name) for name in columns],
        outcome=pl.when(late).then(pl.lit("silent")).otherwise("outcome"),
    ).write_parquet(place / "clients.parquet")
    row = shadow(place, ["fedavg+wfa"]).rows[0]
    assert row.known < 1.0
    assert row.low_s < run("fedavg+wfa").clock_s < row.high_s
    assert shadow(place, ["fedavg+wfa"]).recommendation is None


def test_last_rounds_and_wrong_options(tmp_path: Path) -> None:
    place = _recorded(tmp_path, "fedavg+1t")
    replayed = shadow(place, ["fedavg+1t"], last=5)
    rounds = pl.read_parquet(place / "rounds.parquet")
    assert replayed.rounds == 5
    assert replayed.recorded_s == pytest.approx((rounds["end_s"] - rounds["start_s"])[-5:].sum())
    with pytest.raises(BadSetting, match="must be at least 1"):
        shadow(place, ["fedavg+1t"], last=0)
    with pytest.raises(UnknownName, match="unknown method 'canteen'"):
        shadow(place, ["canteen"])
    assert in_hours(6 * 3600) == "6 h"


def test_lines_for_the_status_and_the_page_of_a_run_on_flower(tmp_path: Path) -> None:
    place = _recorded(tmp_path, "fedavg+wfa")
    assert shadow_lines(place) == []  # simulated
    assert shadow_lines(tmp_path) == []  # no run
    manifest = json.loads((place / "manifest.json").read_text())
    manifest = {key: value for key, value in manifest.items() if key not in ("sha256", "files")}
    (place / "manifest.json").write_text(json.dumps(manifest | {"engine": "flower"}))
    lines = shadow_lines(place, 6)
    assert len(lines) == 4
    assert lines[0].startswith("with fedavg+1t the last 6 rounds would have taken")
    with open_dashboard(place, remarks=shadow_lines) as server:
        page = server.page.newest()[1].decode()
    assert "Under other methods" in page
    assert "with canter the last" in page
