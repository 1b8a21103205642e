"""Fleets that are drawn from shares and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.simulation.devices import Fleet
from fedbalancer.simulation.devices.fleet_files import fleet_of_table

shares = st.floats(0, 1e6, allow_subnormal=False)


@given(st.integers(1, 200), shares, shares, st.floats(1e-3, 1e6))
def test_classes_have_their_shares(count: int, slow: float, mid: float, fast: float) -> None:
    fleet = Fleet.synthetic(count, slow=slow, mid=mid, fast=fast)
    assert len(fleet) == count
    classes = [device.device_class for device in fleet.devices]
    whole = slow + mid + fast
    for name, share in (("slow", slow), ("mid", mid), ("fast", fast)):
        assert abs(classes.count(name) - count * share / whole) < 1


def count(**shares: Any) -> dict[str, int]:
    classes = [device.device_class for device in Fleet.synthetic(1000, **shares).devices]
    return {name: classes.count(name) for name in ("slow", "mid", "fast")}


def test_classes_without_a_share_have_the_rest() -> None:
    assert count() == {"slow": 532, "mid": 464, "fast": 4}
    assert count(fast=0.5) == {"slow": 267, "mid": 233, "fast": 500}
    assert count(slow=1) == {"slow": 1000, "mid": 0, "fast": 0}
    assert count(slow=0.25, mid={"batch_s": 1}, fast=0.25) == {"slow": 250, "mid": 500, "fast": 250}


def test_the_seed_decides() -> None:
    options: dict[str, Any] = {
        "slow": {"share": 1, "batch_s": {"lognormal": [1, 0.5]}},
        "bandwidth": {"uniform": [1, 9]},
    }
    assert Fleet.synthetic(9, **options) == Fleet.synthetic(9, **options)
    assert Fleet.synthetic(9, **options) != Fleet.synthetic(9, seed=1, **options)


def test_distributions() -> None:
    fleet = Fleet.synthetic(
        2000,
        slow={"share": 1, "batch_s": {"lognormal": [2.0, 0.5]}, "spread": 0.1, "batch_size": 20, "model": "har"},
        mid={"share": 1, "sample_s": {"normal": [0.1, 0.02]}, "flops": 5e6, "bandwidth": 100},
        fast={"share": 1, "batch_s": {"choice": [0.1, 0.2]}},
        bandwidth={
            "down": {"uniform": [10, 30]},
            "up": lambda rng, count: rng.exponential(5, count) + 1,
            "spread": 0.5,
        },
    )
    groups = {name: [each for each in fleet.devices if each.device_class == name] for name in ("slow", "mid", "fast")}
    slow = np.array([device.batch_s for device in groups["slow"]])
    assert np.median(slow) == pytest.approx(2.0, rel=0.1)
    assert np.log(slow).std() == pytest.approx(0.5, rel=0.1)
    assert groups["slow"][0].std_s == pytest.approx(0.1 * slow[0])
    assert (groups["slow"][0].batch_size, groups["slow"][0].model) == (20, "har")
    assert np.mean([device.sample_s for device in groups["mid"]]) == pytest.approx(0.1, rel=0.05)
    assert {device.down_mbit_s for device in groups["mid"]} == {100.0}
    assert {device.batch_s for device in groups["fast"]} == {0.1, 0.2}
    down = np.array([device.down_mbit_s for device in groups["fast"]])
    assert 10 <= down.min() < 12
    assert 28 < down.max() <= 30
    assert groups["fast"][0].up_std_mbit_s == pytest.approx(0.5 * (groups["fast"][0].up_mbit_s or 0))


def test_a_recipe_is_written_down_unless_it_has_a_function() -> None:
    plain = Fleet.synthetic(5, slow={"share": 1, "batch_s": {"uniform": [1, 2]}}, bandwidth=20)
    assert plain.to_json()["kind"] == "synthetic"
    assert fleet_of_table(plain.to_json()) == plain
    function = Fleet.synthetic(5, bandwidth=lambda rng, count: rng.uniform(1, 2, count))
    assert function.to_json()["kind"] == "list"
    assert fleet_of_table(function.to_json()) == function


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"count": 0}, BadSetting, "count = 0 must be"),
        ({"slow": -1}, BadSetting, "slow = -1 must have a share of 0 or more"),
        ({"slow": {"share": "half"}}, BadSetting, "must have a share"),
        ({"slow": 0.8, "mid": 0.4}, BadSetting, "the shares of slow, mid add up to 1.2; they must be at most 1"),
        ({"slow": 0, "mid": 0, "fast": 0}, BadSetting, "are all 0"),
        ({"slow": {"share": 1, "batchs": 2}}, UnknownName, "key of slow 'batchs'; did you mean batch_s"),
        ({"slow": {"share": 1, "spread": 2}}, BadSetting, "slow: spread needs batch_s or sample_s"),
        ({"slow": {"share": 1, "batch_s": -2}}, BadSetting, "slow: batch_s = -2 must give numbers above 0"),
        ({"slow": {"share": 1, "batch_s": "fast"}}, BadSetting, "slow: batch_s = 'fast' must give numbers above 0"),
        ({"slow": {"share": 1, "batch_s": 1, "spread": -1}}, BadSetting, "slow: spread = -1 must be"),
        ({"bandwidth": {"gamma": [1, 2]}}, UnknownName, "distribution 'gamma'"),
        ({"bandwidth": {"uniform": [1]}}, BadSetting, "bandwidth: down = .* must be"),
        ({"bandwidth": {"uniform": [1, 2], "normal": [1, 2]}}, BadSetting, "must have one distribution"),
        ({"bandwidth": {"down": 5}}, BadSetting, "must have both down and up"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Fleet.synthetic(**{"count": 10, **options})
