"""Figures of fleets, and what is reported as implausible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from any_fleet import fleets
from hypothesis import given

from fedbalancer.simulation.devices import Device, Fleet
from fedbalancer.simulation.devices.fleet_check import find_problems, online_hours, online_shares, summarise


def three(**values: Any) -> Fleet:
    return Fleet([Device(id=f"d{at}", **values) for at in range(3)])


@pytest.mark.parametrize(
    ("fleet", "message"),
    [
        (three(batch_s=900), "the median of batch_s is 900: these look like milliseconds"),
        (three(sample_s=40), "the median of sample_s is 40: these look like milliseconds"),
        (Fleet([*three(batch_s=1).devices, Device(id="x", batch_s=4000)]), "x has batch_s above 3600 s"),
        (three(batch_s=1, std_s=2), "d0, d1, d2 have a std_s above the mean"),
        (three(down_mbit_s=20_000, up_mbit_s=5), "the median of down_mbit_s is 20000: these look like kbit/s or bytes"),
        (
            Fleet([*three(down_mbit_s=9, up_mbit_s=9).devices, Device(id="x", down_mbit_s=9, up_mbit_s=20_000)]),
            "x has up_mbit_s above 10 Gbit/s",
        ),
        (three(down_mbit_s=0.001, up_mbit_s=5), "d0, d1, d2 have down_mbit_s below 10 kbit/s"),
        (three(online=[]), "d0, d1, d2 have no online interval"),
        (three(online=[(0, 8), (22, 24)]), "ends at 24: these look like hours"),
        (three(online=[(0, 1.6e12)]), "look like milliseconds or dates"),
        (Fleet([Device(id=f"d{at}", online=[]) for at in range(9)]), "d0, d1, d2 and 6 more have no online interval"),
    ],
)
def test_what_is_implausible_is_said(fleet: Fleet, message: str) -> None:
    assert any(message in problem for problem in find_problems(fleet)), find_problems(fleet)


def test_equal_devices_are_shown_but_no_warning_of_a_run() -> None:
    fleet = three(batch_s=1.5, online=[(0, 3600)])
    assert find_problems(fleet) == []
    assert summarise(fleet).problems == [
        "all 3 devices have the same batch_s, 1.5",
        "all 3 devices have the same online intervals",
    ]


def test_the_fleets_of_the_paper_are_plausible() -> None:
    assert find_problems(Fleet.paper()) == []
    assert find_problems(Fleet.synthetic(200, bandwidth={"lognormal": [20, 1]})) == []


def test_the_figures_of_a_fleet() -> None:
    fleet = Fleet([
        Device(id="a", batch_s=1, device_class="fast", online=[(0, 5400)]),
        Device(id="b", batch_s=3, device_class="slow", down_mbit_s=8, up_mbit_s=2),
    ])  # fmt: skip
    summary = summarise(fleet)
    assert list(summary.classes.items()) == [("slow", 1), ("fast", 1)]
    assert summary.quantiles["batch_s"][3] == 2.0
    assert summary.counts == {"batch_s": 2, "down_mbit_s": 1, "up_mbit_s": 1}
    assert summary.online_by_hour[:3] == [1.0, 0.75, 0.5]
    assert summary.online_share.tolist() == [0.0625, 1.0]


def test_hours_are_folded_over_the_days() -> None:
    fleet = Fleet([Device(id="a", online=[(0, 3600), (86400 + 3600, 86400 + 7200)])])
    assert online_hours(fleet)[0, :3].tolist() == [0.5, 0.5, 0.0]


@given(fleets)
def test_hours_and_shares_agree(fleet: Fleet) -> None:
    hours, shares = online_hours(fleet), online_shares(fleet)
    assert (hours >= 0).all()
    assert (hours <= 1 + 1e-9).all()
    assert np.allclose(hours.mean(axis=1), shares)
