"""A learned fleet has the speeds of the devices that were measured, and says what it does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedbalancer as fb
from fedbalancer.core.errors import BadSetting, RunFolderError
from fedbalancer.experiments.learned_fleet import (
    band_coverage,
    description_path,
    learn,
    read_description,
    vary,
)
from fedbalancer.experiments.recording import read_recording
from fedbalancer.simulation.devices.fleet_files import read_fleet

CLIENTS = [f"u{number:05d}" for number in range(8)]


def true_fleet(spread: float = 0.05) -> fb.Fleet:
    return fb.Fleet([
        fb.Device(id=client, batch_s=0.1 * (place + 1), std_s=spread * 0.1 * (place + 1), down_mbit_s=0.2,
                  up_mbit_s=0.1, down_std_mbit_s=0.02, up_std_mbit_s=0.01)
        for place, client in enumerate(CLIENTS)
    ])  # fmt: skip


def record(folder: Path, method: str = "fedavg+wfa", rounds: int = 12, **settings: float) -> Path:
    fb.run("synthetic", method, users=8, rounds=rounds, timing_only=True, devices=true_fleet(), out=folder / "run",
           settings={"clients_per_round": 4, **settings})  # fmt: skip
    return folder / "run"


@pytest.mark.parametrize("method", ["fedavg+wfa", "canter", "prox+1t", "oort"])
def test_means_are_those_of_the_devices(tmp_path: Path, method: str) -> None:
    learned = learn(record(tmp_path, method))
    true = {device.id: device for device in true_fleet().devices}
    assert [device.id for device in learned.fleet.devices] == CLIENTS
    for device in learned.fleet.devices:
        assert device.batch_s == pytest.approx(true[device.id].batch_s, rel=0.15)
        assert device.down_mbit_s == pytest.approx(0.2, rel=0.35)
        assert device.batch_size == 10
    shares = [device.std_s / device.batch_s for device in learned.fleet.devices]
    assert 0.02 < np.mean(shares) < 0.09
    assert learned.to_json()["window_s"] == 20.0


def test_rounds_after_the_first_ones_do_not_count(tmp_path: Path) -> None:
    run = record(tmp_path)
    assert read_recording(run, 3).rounds["round"].to_list() == [1, 2, 3]
    assert learn(run, rounds=3).devices["rounds"].sum() == 12
    with pytest.raises(BadSetting, match="rounds = 0 must be at least 1"):
        read_recording(run, 0)


def test_file_description_and_picture(tmp_path: Path) -> None:
    learned = learn(record(tmp_path))
    for name in ("mine.csv", "mine.parquet"):
        files = learned.write(tmp_path / name)
        assert all(file.stat().st_size for file in files)
        fleet = read_fleet(tmp_path / name)
        assert fleet == learned.fleet
        description = read_description(tmp_path / name, fleet)
        assert description is not None
        assert sum(description["measured_rounds"].values()) == 48
        assert read_description(tmp_path / name, fb.Fleet(fleet.devices[1:])) is None  # not the fleet that was learned
    assert fb.run("synthetic", "fedavg+1t", users=8, rounds=1, timing_only=True, devices=tmp_path / "mine.csv").clock_s
    with pytest.raises(BadSetting, match=r"must end in \.csv or"):
        learned.write(tmp_path / "mine.json")
    description_path(tmp_path / "mine.csv").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_description(tmp_path / "mine.csv", learned.fleet)


def test_measurements_lie_in_the_fitted_bands(tmp_path: Path) -> None:
    learned = learn(record(tmp_path, rounds=60))
    for name in ("batch_s", "down_mbit_s", "up_mbit_s"):
        inside = band_coverage(learned.fleet, learned.recording.clients, name)
        assert inside is not None
        assert 0.84 < inside < 0.96


def test_device_that_never_answers_is_named(tmp_path: Path) -> None:
    run = record(tmp_path)
    table = pl.read_parquet(run / "clients.parquet")
    silent = pl.col("client") == CLIENTS[7]
    columns = ("download_s", "train_s", "upload_s", "epochs")
    table.with_columns(
        *[pl.when(silent).then(0.0).otherwise(name).alias(name) for name in columns],
        outcome=pl.when(silent).then(pl.lit("silent")).otherwise("outcome"),
    ).write_parquet(run / "clients.parquet")
    learned = learn(run)
    device = next(each for each in learned.fleet.devices if each.id == CLIENTS[7])
    assert device.batch_s == pytest.approx(0.8, rel=0.1)  # measured before the first round
    assert device.online is not None
    assert sum(end - start for start, end in device.online) < 0.5 * 86400
    assert [each.online for each in learned.fleet.devices if each.id != CLIENTS[7]] == [None] * 7
    assert any("were never answered" in note for note in learned.notes)
    assert any("never completed a round" in note for note in learned.notes)
    assert learn(run).fleet == learned.fleet  # the drawn hours depend on the client only


def test_classes(tmp_path: Path) -> None:
    run = record(tmp_path)
    drawn = learn(run, by="class", count=60).fleet
    assert len(drawn) == 60
    mean_s = {name: np.mean([each.batch_s for each in drawn.devices if each.device_class == name])
              for name in ("slow", "mid", "fast")}  # fmt: skip
    assert mean_s["slow"] > mean_s["mid"] > mean_s["fast"]
    with pytest.raises(BadSetting, match="by = 'phone' must be device or class"):
        learn(run, by="phone")
    with pytest.raises(BadSetting, match="count = 5 needs by = 'class'"):
        learn(run, count=5)


def test_varied_fleet_differs_as_much_as_it_is_uncertain(tmp_path: Path) -> None:
    fleet = true_fleet(spread=0.2)
    few, many = (dict.fromkeys(CLIENTS, count) for count in (1, 400))
    ratio = {count: [varied.batch_s / known.batch_s for seed in range(30)
                     for varied, known in zip(vary(fleet, rounds, seed).devices, fleet.devices, strict=True)]
             for count, rounds in ((1, few), (400, many))}  # fmt: skip
    assert np.std(ratio[1]) == pytest.approx(0.2, rel=0.2)
    assert np.std(ratio[400]) == pytest.approx(0.01, rel=0.2)
    assert vary(fleet, few, 3) == vary(fleet, few, 3)


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        learn(tmp_path)
    run = record(tmp_path)
    (run / "clients.parquet").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"clients\.parquet cannot be read"):
        learn(run)
