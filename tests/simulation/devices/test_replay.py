"""Replay: exactly what was recorded, and a clear error for anything else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.core.interfaces import DeviceModel
from fedbalancer.simulation.devices import DeviceDraw, Network, Replay

GOLDEN = Path(__file__).parents[4] / "shared" / "reference" / "har_golden_seed0.json"


@pytest.fixture
def replay() -> Replay:
    draws = {(1, "ann"): DeviceDraw(0.5, 2.0, 3.0), (2, "ann"): DeviceDraw(0.6, 2.5, 3.5)}
    return Replay(draws, {"ann": [0.5, 0.6, 0.7]}, {"ann": 4.0})


def test_it_repeats_the_recording_whatever_the_bytes(replay: Replay) -> None:
    assert replay.draw("ann", 2, 10, 10) == replay.draw("ann", 2, 10**9, 0) == DeviceDraw(0.6, 2.5, 3.5)
    assert replay.expected_network_s("ann", 10, 10) == 4.0
    assert replay.sample_batch_s("ann", 2).tolist() == [0.5, 0.6]
    assert replay.sample_batch_s("ann", 2).dtype == np.float64


def test_a_sample_is_the_callers_own(replay: Replay) -> None:
    replay.sample_batch_s("ann", 3)[0] = 99
    assert replay.sample_batch_s("ann", 1).tolist() == [0.5]


def test_what_was_not_recorded_is_an_error(replay: Replay) -> None:
    with pytest.raises(BadData, match="no draw of client 'ann' in round 3"):
        replay.draw("ann", 3, 0, 0)
    with pytest.raises(BadData, match="no draw of client 'bob' in round 1"):
        replay.draw("bob", 1, 0, 0)
    with pytest.raises(BadData, match="no expected network seconds of client 'bob'"):
        replay.expected_network_s("bob", 0, 0)
    with pytest.raises(BadData, match="no sampled batch latencies of client 'bob'"):
        replay.sample_batch_s("bob", 1)
    with pytest.raises(BadData, match="'ann' has 3 recorded batch latencies; 10 are asked for"):
        replay.sample_batch_s("ann", 10)


def test_a_draw_is_frozen() -> None:
    drawn = DeviceDraw(0.5, 2.0, 3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        drawn.batch_s = 1.0  # type: ignore[misc]


def test_the_authors_rounds_come_back_as_logged() -> None:
    """The first FedAvg+1T rounds of UCI-HAR, seed 0: who is in time follows from the injected draws."""
    if not GOLDEN.is_file():
        pytest.skip(f"the golden UCI-HAR rounds are not at {GOLDEN}")
    golden = json.loads(GOLDEN.read_text())
    clients = {str(client["subject"]): client for client in golden["seeds"]["0"]["clients"]}
    run, size, network = golden["seeds"]["0"]["runs"]["fedavg_1T"], golden["model_bytes"], Network(0, None, 1000)
    draws = {
        (number, str(draw[0])): DeviceDraw(*draw[1:4])
        for number, logged in enumerate(run["rounds"], start=1)
        for draw in logged["draws"]
    }
    network_s = {name: network.profile_expected_s(client["net"], size, size) for name, client in clients.items()}
    model: DeviceModel = Replay(draws, {name: client["batch_s_10"] for name, client in clients.items()}, network_s)
    for number, logged in enumerate(run["rounds"], start=1):
        in_time = 0
        for name in (str(draw[0]) for draw in logged["draws"]):
            drawn = model.draw(name, number, size, size)
            train_s = golden["E"] * ((clients[name]["n"] - 1) // golden["B"] + 1) * drawn.batch_s
            in_time += drawn.download_s + train_s + drawn.upload_s <= run["deadline"]
        assert in_time == logged["ok"]
