"""Phones: the published latencies and class shares, one draw per client and round, never a batch without duration."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.interfaces import DeviceModel
from fedbalancer.core.randomness import client_keys
from fedbalancer.simulation.devices import CLASS_WEIGHTS, LATENCY_MS, DeviceDraw, Network, Phones, resolve_latency

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
