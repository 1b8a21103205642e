"""Orders without an answer: slow devices are not taken for fast ones, nor for phones that are switched off."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.experiments.learned_fleet import learn
from fedbalancer.experiments.recording import read_recording
from fedbalancer.experiments.unanswered import orders_missed_by_lateness, with_expected_network

SLOW = ("u00005", "u00006", "u00007")


def fleet() -> fb.Fleet:
    """Half of a round of the slow devices is spent on their network, which varies."""
    return fb.Fleet([
        fb.Device(id=f"u{place:05d}", batch_s=0.05, std_s=0.001, down_mbit_s=speed, up_mbit_s=speed,
                  down_std_mbit_s=0.3 * speed, up_std_mbit_s=0.3 * speed)
        for place, speed in enumerate([0.2] * 5 + [0.011] * 3)
    ])  # fmt: skip


def record(folder: Path, rounds: int = 40) -> Path:
    """A run whose late clients are recorded as a Flower server sees them: without an answer."""
    run = folder / "run"
    fb.run("synthetic", "fedavg+1t", users=8, rounds=rounds, timing_only=True, devices=fleet(), out=run,
           settings={"clients_per_round": 4})  # fmt: skip
    table = pl.read_parquet(run / "clients.parquet")
    missed = pl.col("outcome") != "completed"
    columns = ("download_s", "train_s", "upload_s", "epochs", "samples", "paused_s")
    table.with_columns(
        *[pl.when(missed).then(0).otherwise(name).cast(table[name].dtype).alias(name) for name in columns],
        outcome=pl.when(missed).then(pl.lit("silent")).otherwise("outcome"),
    ).write_parquet(run / "clients.parquet")
    return run


def online_share(device: fb.Device) -> float:
    return 1.0 if device.online is None else sum(end - start for start, end in device.online) / 86400


def test_slow_devices_are_neither_fast_nor_offline(tmp_path: Path) -> None:
    run = record(tmp_path)
    learned = learn(run)
    missed = learned.devices.filter(pl.col("asked") > pl.col("answered"))["client"].to_list()
    assert set(missed) & set(SLOW)
    for device in learned.fleet.devices:
        assert online_share(device) > 0.85, device.id
        if device.id in SLOW:
            assert device.down_mbit_s == pytest.approx(0.011, rel=0.35), device.id
            assert device.up_mbit_s == pytest.approx(0.011, rel=0.35), device.id


def test_what_lateness_does_not_explain_is_absence(tmp_path: Path) -> None:
    run = record(tmp_path)
    table = pl.read_parquet(run / "clients.parquet")
    gone = (pl.col("client") == "u00000") & (pl.col("round") > 10)  # a fast device
    table.with_columns(outcome=pl.when(gone).then(pl.lit("silent")).otherwise("outcome")).write_parquet(
        run / "clients.parquet"
    )
    online = {device.id: online_share(device) for device in learn(run).fleet.devices}
    assert online.pop("u00000") < 0.6
    assert min(online.values()) > 0.85


def test_devices_that_always_answer_stay_as_measured(tmp_path: Path) -> None:
    record_of_all = read_recording(record(tmp_path))
    table = pl.DataFrame({
        "client": ["u00001"], "rounds": [3], "asked": [3], "answered": [3], "batch_s": [0.05], "samples": [100],
        "down_mbit_s": [0.1], "up_mbit_s": [0.3],
    })  # fmt: skip
    assert with_expected_network(record_of_all, table).equals(table)


@pytest.mark.parametrize(("batch_s", "expected"), [(1e-4, 0.0), (1e4, 1.0)])
def test_every_order_is_counted_by_its_chance_of_lateness(tmp_path: Path, batch_s: float, expected: float) -> None:
    recording = read_recording(record(tmp_path))
    silent = recording.clients.filter((pl.col("outcome") == "silent") & (pl.col("client") == "u00007")).height
    assert silent > 0
    clients = recording.clients["client"].unique().sort()
    table = pl.DataFrame({"client": clients}).with_columns(
        batch_s=pl.lit(batch_s), samples=pl.lit(100), asked=pl.lit(40), down_mbit_s=pl.lit(1e3), up_mbit_s=pl.lit(1e3)
    )
    missed = orders_missed_by_lateness(recording, table, spread=0.3)
    assert missed["u00007"] == pytest.approx(expected * silent, abs=1e-6)
