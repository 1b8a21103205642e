"""The network: nineteen profiles, positive speeds, the published heavy tail, and the floor that cuts it."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import client_keys
from fedbalancer.simulation.devices import PROFILES, Network

GOLDEN = Path(__file__).parents[4] / "shared" / "reference" / "har_golden_seed0.json"
MB = 1024 * 1024


@pytest.fixture
def golden() -> dict[str, Any]:
    if not GOLDEN.is_file():
        pytest.skip(f"the golden UCI-HAR rounds are not at {GOLDEN}")
    data: dict[str, Any] = json.loads(GOLDEN.read_text())
    return data


def profile_of(network: Network, client: str) -> int:
    return int(network.profiles(client_keys([client]))[0])


def expected_s(network: Network, client: str, down_bytes: int, up_bytes: int) -> float:
    return float(network.expected_s(client_keys([client]), down_bytes, up_bytes)[0])


def draw_s(network: Network, client: str, round: int, down_bytes: int, up_bytes: int) -> tuple[float, float]:
    down_s, up_s = network.draw_s(client_keys([client]), round, down_bytes, up_bytes)
    return float(down_s[0]), float(up_s[0])


def client_of_profile(network: Network, profile: int) -> str:
    return next(name for name in map(str, range(1000)) if profile_of(network, name) == profile)


def speeds_kb_s(network: Network, client: str, rounds: int) -> np.ndarray:
    """Download and upload speeds, got back from the seconds that one kilobyte takes."""
    seconds = [draw_s(network, client, round, 1024, network.upload_kb_bytes) for round in range(rounds)]
    return 1 / np.array(seconds)


def test_profiles_are_the_published_ones(golden: dict[str, Any]) -> None:
    np.testing.assert_allclose(PROFILES, golden["speeds_kB_s"], rtol=0, atol=5.1e-7)


def test_expected_seconds_reproduce_the_logged_deadline_T(golden: dict[str, Any]) -> None:
    """T of seed 0, with the upload's 1000 bytes per kilobyte of the logs."""
    network, size = Network(seed=0, upload_kb_bytes=1000), golden["model_bytes"]
    totals = []
    for client in golden["seeds"]["0"]["clients"]:
        batches = golden["E"] * ((client["n"] - 1) // golden["B"] + 1)
        transfer_s = network.profile_expected_s(client["net"], size, size)
        totals.append(transfer_s + batches * np.mean(client["batch_s_10"]))
    assert len(totals) == 21
    assert np.mean(totals) == pytest.approx(golden["seeds"]["0"]["T"], abs=1e-6)
    assert np.mean(totals) == pytest.approx(191.15984072662027, abs=1e-6)


def test_expected_seconds_are_size_over_mean_speed() -> None:
    network = Network(seed=5)
    down_mean, _, up_mean, _ = PROFILES[profile_of(network, "ann")]
    assert expected_s(network, "ann", 3 * MB, 2 * MB) == pytest.approx(3 * 1024 / down_mean + 2 * 1024 / up_mean)
    assert expected_s(network, "ann", 0, 0) == 0
    thousand = Network(seed=5, upload_kb_bytes=1000)
    assert expected_s(thousand, "ann", 0, 1000) == pytest.approx(1 / up_mean)


def test_profiles_are_uniform_over_clients() -> None:
    network = Network(seed=1)
    counts = Counter(profile_of(network, f"client {number}") for number in range(5700))
    assert set(counts) == set(range(19))
    chi2 = sum((count - 300) ** 2 / 300 for count in counts.values())
    assert chi2 < 42.3  # 99.9 % point with 18 degrees of freedom


def test_speeds_follow_the_profile_where_redraws_are_rare() -> None:
    network = Network(seed=2)
    drawn = speeds_kb_s(network, client_of_profile(network, 7), 3000)
    down_mean, down_std, up_mean, up_std = PROFILES[7]
    np.testing.assert_allclose(drawn.mean(axis=0), [down_mean, up_mean], rtol=0.01)
    np.testing.assert_allclose(drawn.std(axis=0), [down_std, up_std], rtol=0.05)


def test_without_floor_speeds_come_arbitrarily_near_zero_but_stay_positive() -> None:
    network = Network(seed=3)
    drawn = speeds_kb_s(network, client_of_profile(network, 16), 3000)[:, 0]  # mean 6708, deviation 6738
    assert (drawn > 0).all()
    assert drawn.min() < 0.01 * PROFILES[16][0]


@pytest.mark.parametrize("profile", [5, 7, 16, 18])
def test_speeds_are_the_profiles_normals_drawn_again_while_not_positive(profile: int) -> None:
    """In round r the clients of a profile have speeds of a normal cut at zero: the literal rule, drawn elsewhere."""
    network, rng = Network(seed=4), np.random.default_rng(profile)
    keys = client_keys(f"client {number}" for number in range(4000))
    keys = keys[network.profiles(keys) == profile]
    seconds = np.array([network.draw_s(keys, round, 1024, 1024) for round in range(25)])
    mean, std = np.array(PROFILES[profile]).reshape(2, 2).T
    for way in range(2):
        drawn = 1 / seconds[:, way].ravel()
        assert (
            stats.kstest(drawn, stats.truncnorm(-mean[way] / std[way], np.inf, mean[way], std[way]).cdf).pvalue > 0.001
        )
        literal = rng.normal(mean[way], std[way], 20_000)
        while (again := literal <= 0).any():
            literal[again] = rng.normal(mean[way], std[way], again.sum())
        assert stats.ks_2samp(drawn, literal).pvalue > 0.001


def test_a_redraw_does_not_depend_on_who_else_draws_again() -> None:
    """A redraw depends on the client's own first draw only: who else had to draw again does not matter."""
    network = Network(seed=6)
    keys = client_keys(map(str, range(500)))
    together = np.array(network.draw_s(keys, 3, MB, MB))
    reversed_order = np.array(network.draw_s(keys[::-1], 3, MB, MB))[:, ::-1]
    assert np.array_equal(together, reversed_order)


def test_a_floor_lifts_slow_draws_and_leaves_the_others() -> None:
    published, floored = Network(seed=3), Network(seed=3, floor=0.05)
    client = client_of_profile(published, 16)
    before, after = (speeds_kb_s(network, client, 1000) for network in (published, floored))
    least = 0.05 * np.array([PROFILES[16][0], PROFILES[16][2]])
    np.testing.assert_allclose(after, np.maximum(before, least))
    assert (before < least).any()


def test_a_floor_leaves_the_expected_seconds() -> None:
    assert expected_s(Network(seed=3, floor=0.5), "ann", MB, MB) == expected_s(Network(seed=3), "ann", MB, MB)


@given(seed=st.integers(0, 2**40), round=st.integers(0, 10**6), client=st.text(max_size=8))
def test_a_draw_depends_on_seed_round_and_client_only(seed: int, round: int, client: str) -> None:
    used, fresh = Network(seed), Network(seed)
    draw_s(used, "somebody else", round, MB, MB)
    draw_s(used, client, round + 1, MB, MB)
    down_s, up_s = draw_s(used, client, round, MB, MB)
    assert (down_s, up_s) == draw_s(fresh, client, round, MB, MB)
    twice = draw_s(fresh, client, round, 2 * MB, 2 * MB)
    assert twice == pytest.approx((2 * down_s, 2 * up_s))
    assert (down_s, up_s) != draw_s(fresh, client, round + 1, MB, MB)


def test_it_is_a_value_that_travels() -> None:
    network = Network(seed=9, floor=0.1)
    profile_of(network, "ann")
    copy = pickle.loads(pickle.dumps(network))
    assert copy == network == Network(seed=9, floor=0.1)
    assert hash(copy) == hash(network)
    assert draw_s(copy, "bob", 4, MB, MB) == draw_s(network, "bob", 4, MB, MB)


@pytest.mark.parametrize("floor", [-0.1, 1.5, float("nan")])
def test_a_floor_out_of_range_is_refused(floor: float) -> None:
    with pytest.raises(BadSetting, match=r"network floor is .* from 0 to 1"):
        Network(seed=0, floor=floor)


def test_a_strange_kilobyte_is_refused() -> None:
    with pytest.raises(BadSetting, match="upload_kb_bytes is 1; it must be 1024, or 1000"):
        Network(seed=0, upload_kb_bytes=1)
