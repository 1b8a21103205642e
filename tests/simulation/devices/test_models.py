"""Device models: phones, recorded draws, and many devices at once."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.interfaces import Availability, DeviceModel
from fedbalancer.core.randomness import client_keys
from fedbalancer.simulation.devices import (
    CLASS_WEIGHTS,
    LATENCY_MS,
    AlwaysOn,
    DeviceDraw,
    Network,
    Phones,
    Replay,
    Traces,
    are_available,
    draw_devices,
    estimate_network_s,
    resolve_latency,
    sample_batch_s,
)
from fedbalancer.simulation.devices.models import ManyDevices

GOLDEN = Path(__file__).parents[4] / "shared" / "reference" / "har_golden_seed0.json"
SIZE = 6410008
ROW = {"slow": (100.0, 1.0), "mid": (50.0, 1.0), "fast": (10.0, 0.0)}


def phones(latency: str | Mapping[str, tuple[float, float]] = "femnist", seed: int = 0) -> Phones:
    return Phones(seed, resolve_latency(latency), Network(seed))


def client_of_class(model: Phones, name: str) -> str:
    return next(client for client in map(str, range(5000)) if model.device_class(client) == name)


def test_har_row_is_the_one_of_the_logs() -> None:
    if not GOLDEN.is_file():
        pytest.skip(f"the golden UCI-HAR rounds are not at {GOLDEN}")
    golden = json.loads(GOLDEN.read_text())
    expected = list(zip(golden["batch_ms_mean"], golden["batch_ms_std"], strict=True))
    np.testing.assert_allclose([LATENCY_MS["har"][name] for name in CLASS_WEIGHTS], expected, rtol=1e-12)


def test_har_is_quicker_than_femnist_by_the_ratio_of_bytes() -> None:
    assert LATENCY_MS["har"]["slow"] == pytest.approx((1573.06, 95.32), abs=0.005)
    assert LATENCY_MS["har"]["fast"] == pytest.approx((171.49, 2.20), abs=0.005)


def test_every_row_has_every_class() -> None:
    assert set(LATENCY_MS) == {"femnist", "celeba", "reddit", "shakespeare", "har"}
    assert all(set(row) == {"slow", "mid", "fast"} for row in LATENCY_MS.values())


def test_classes_come_in_the_published_shares() -> None:
    model = phones(seed=4)
    counts = Counter(model.device_class(f"client {number}") for number in range(8000))
    assert counts["slow"] / 8000 == pytest.approx(0.53153, abs=0.02)
    assert counts["mid"] / 8000 == pytest.approx(0.46398, abs=0.02)
    assert counts["fast"] / 8000 == pytest.approx(0.00449, abs=0.0025)


def test_a_client_keeps_its_class() -> None:
    first, second = phones(seed=7), phones("celeba", seed=7)
    assert all(first.device_class(str(number)) == second.device_class(str(number)) for number in range(50))


@pytest.mark.parametrize("row", sorted(LATENCY_MS))
@pytest.mark.parametrize("name", ["slow", "mid", "fast"])
def test_draws_have_the_mean_and_deviation_of_the_table(row: str, name: str) -> None:
    model = phones(row, seed=1)
    client = client_of_class(model, name)
    mean, std = LATENCY_MS[row][name]
    before = model.sample_batch_s(client, 4000) * 1000
    rounds = np.array([model.draw(client, round, 0, 0).batch_s for round in range(800)]) * 1000
    for drawn in (before, rounds):
        spread = std / np.sqrt(len(drawn))
        assert drawn.mean() == pytest.approx(mean, abs=4.5 * spread)
        assert drawn.std() == pytest.approx(std, rel=4.5 / np.sqrt(2 * len(drawn)))


@pytest.mark.parametrize("row", sorted(LATENCY_MS))
def test_latencies_of_a_round_are_the_published_normals_over_clients(row: str) -> None:
    model, clients = phones(row, seed=3), [f"client {number}" for number in range(3000)]
    mean, std = np.array([LATENCY_MS[row][model.device_class(client)] for client in clients]).T
    drawn = model.draw_many(clients, 9, 0, 0).batch_s * 1000
    assert stats.kstest((drawn - mean) / std, "norm").pvalue > 0.001
    before = model.sample_batch_s_many(clients, 5) * 1000
    assert stats.kstest(((before - mean[:, None]) / std[:, None]).ravel(), "norm").pvalue > 0.001
    assert abs(np.corrcoef((drawn - mean) / std, (before[:, 0] - mean) / std)[0, 1]) < 4.5 / np.sqrt(3000)


@given(seed=st.integers(0, 2**40), round=st.integers(0, 10**6), client=st.text(max_size=8))
def test_a_draw_depends_on_seed_round_and_client_only(seed: int, round: int, client: str) -> None:
    used, fresh = phones(seed=seed), phones(seed=seed)
    used.sample_batch_s(client, 3)
    used.draw("somebody else", round, 1, 1)
    assert used.draw(client, round, SIZE, SIZE) == fresh.draw(client, round, SIZE, SIZE)
    assert used.draw(client, round, SIZE, SIZE).batch_s == fresh.draw(client, round, 1, 1).batch_s
    assert used.draw(client, round, SIZE, SIZE) != fresh.draw(client, round + 1, SIZE, SIZE)


@given(mean=st.floats(1e-3, 1e6), spread=st.floats(0, 100), client=st.text(max_size=5), round=st.integers(0, 1000))
def test_a_batch_always_takes_time(mean: float, spread: float, client: str, round: int) -> None:
    model = phones(dict.fromkeys(CLASS_WEIGHTS, (mean, mean * spread)))
    least_s = 0.01 * mean / 1000 * (1 - 1e-9)
    assert model.draw(client, round, SIZE, SIZE).batch_s >= least_s
    assert (model.sample_batch_s(client, 20) >= least_s).all()


def test_transfers_are_those_of_the_network() -> None:
    network = Network(seed=3, floor=0.05)
    model = Phones(0, resolve_latency("har"), network)
    drawn = model.draw("ann", 12, SIZE, SIZE // 2)
    ann = client_keys(["ann"])
    assert (drawn.download_s, drawn.upload_s) == network.draw_s(ann, 12, SIZE, SIZE // 2)
    assert model.expected_network_s("ann", SIZE, SIZE) == network.expected_s(ann, SIZE, SIZE)


def test_it_is_a_device_model_that_travels() -> None:
    model: DeviceModel = phones("har", seed=2)
    drawn = model.draw("ann", 1, SIZE, SIZE)
    assert isinstance(drawn, DeviceDraw)
    copy = pickle.loads(pickle.dumps(model))
    assert copy == model
    assert copy.draw("ann", 1, SIZE, SIZE) == drawn


def test_samples_before_training_are_other_draws_than_those_of_the_rounds() -> None:
    model = phones()
    assert not set(model.sample_batch_s("ann", 10)) & {model.draw("ann", round, 0, 0).batch_s for round in range(10)}


def test_a_deviation_of_zero_is_a_constant_phone() -> None:
    model = phones(dict.fromkeys(CLASS_WEIGHTS, (20, 0)))
    assert model.sample_batch_s("ann", 4).tolist() == [0.02] * 4


def test_own_latencies_are_copied() -> None:
    own = dict(ROW)
    model = Phones(0, own, Network(0))
    own["slow"] = (-1.0, 0.0)
    assert model.latency == ROW


def test_an_unknown_row_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"unknown latency row 'femnits'; did you mean femnist\?"):
        resolve_latency("femnits")


@pytest.mark.parametrize(
    ("latency", "message"),
    [
        ({"slow": (1, 1)}, "must map slow, mid and fast"),
        ({**ROW, "extra": (1, 1)}, "must map slow, mid and fast"),
        (7, "must map slow, mid and fast"),
        ({**ROW, "mid": (0, 1)}, r"latency of mid is \(0, 1\); the mean must be above 0"),
        ({**ROW, "mid": (-3, 1)}, "latency of mid"),
        ({**ROW, "fast": (3, -1)}, "deviation 0 or more"),
        ({**ROW, "fast": (float("nan"), 1)}, "latency of fast"),
        ({**ROW, "fast": (1, float("inf"))}, "latency of fast"),
        ({**ROW, "slow": (1, 2, 3)}, r"latency of slow .* must be \(mean, deviation\)"),
        ({**ROW, "slow": "quick"}, "latency of slow"),
        ({**ROW, "slow": None}, "latency of slow"),
    ],
)
def test_malformed_latencies_are_refused(latency: Any, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        resolve_latency(latency)
    with pytest.raises(BadSetting, match=message):
        Phones(0, latency, Network(0))


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
    with pytest.raises(BadData, match="'ann' has 3 recorded batch latencies, fewer than 10"):
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


some_clients = st.lists(st.text(max_size=5), max_size=6)
MB = 1024 * 1024


def celeba_phones(seed: int = 0, floor: float | None = None) -> Phones:
    return Phones(seed, resolve_latency("celeba"), Network(seed, floor))


def check_draws(devices: DeviceModel, clients: Sequence[str], round: int) -> None:
    each = [devices.draw(client, round, 3 * MB, 2 * MB) for client in clients]
    found = draw_devices(devices, clients, round, 3 * MB, 2 * MB)
    assert found.batch_s.tolist() == [one.batch_s for one in each]
    assert found.download_s.tolist() == [one.download_s for one in each]
    assert found.upload_s.tolist() == [one.upload_s for one in each]


def check_before_training(devices: DeviceModel, clients: Sequence[str], count: int) -> None:
    expected_s = estimate_network_s(devices, clients, 3 * MB, 2 * MB)
    assert expected_s.tolist() == [devices.expected_network_s(client, 3 * MB, 2 * MB) for client in clients]
    sampled_s = sample_batch_s(devices, clients, count)
    assert sampled_s.shape == (len(clients), count)
    assert [row.tolist() for row in sampled_s] == [devices.sample_batch_s(client, count).tolist() for client in clients]


@given(st.integers(0, 2**40), st.none() | st.floats(0, 1), some_clients, st.integers(0, 10**6))
def test_phones_draw_the_same_together_and_alone(
    seed: int, floor: float | None, clients: list[str], round: int
) -> None:
    check_draws(celeba_phones(seed, floor), clients, round)
    check_before_training(celeba_phones(seed, floor), clients, 3)


def test_a_client_may_be_asked_for_twice() -> None:
    check_draws(celeba_phones(), ["ann", "bob", "ann"], 4)


def test_a_population_larger_than_a_block_is_sampled_as_its_clients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [str(number) for number in range(30)]
    whole = celeba_phones().sample_batch_s_many(clients, 4)
    monkeypatch.setattr("fedbalancer.simulation.devices.models._BLOCK", 7)
    assert celeba_phones().sample_batch_s_many(clients, 4).tolist() == whole.tolist()


@pytest.mark.parametrize("clients", [[], ["ann"], ["bob", "ann"]])
def test_a_model_that_knows_one_client_at_a_time_is_asked_one_by_one(clients: list[str]) -> None:
    draws = {(1, "ann"): DeviceDraw(0.5, 2.0, 3.0), (1, "bob"): DeviceDraw(0.7, 2.5, 3.5)}
    replay = Replay(draws, {"ann": [0.5, 0.6], "bob": [0.7, 0.8]}, {"ann": 4.0, "bob": 5.0})
    assert not isinstance(replay, ManyDevices)
    check_draws(replay, clients, 1)
    check_before_training(replay, clients, 2)


class Odd:
    """An availability of one's own: clients whose name has an odd length are away."""

    def is_available(self, client: str, at_s: float) -> bool:
        return len(client) % 2 == 0

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return busy_s


NIGHTS = Traces({"ann": np.array([[0.0, 6.0], [22.0, 24.0]]), "bo": np.array([[5.0, 9.0]])}, period_s=24.0)


@pytest.mark.parametrize("model", [AlwaysOn(), NIGHTS, Odd()], ids=["always", "traces", "own"])
@pytest.mark.parametrize("clients", [(), ("ann", "bo"), ["bo", "ann", "bo"]], ids=["nobody", "all", "some"])
@pytest.mark.parametrize("at_s", [0.0, 5.0, 6.0, 8.9, 9.0, 23.0, 24 * 365.0 + 7])
def test_availability_is_the_same_together_and_alone(model: Availability, clients: Sequence[str], at_s: float) -> None:
    alone = [model.is_available(client, at_s) for client in clients]
    assert are_available(model, clients, at_s).tolist() == alone
