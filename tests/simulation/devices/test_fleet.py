"""Fleets: what a device may be, who gets which device, and the model and availability that follow."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from any_fleet import fleets
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.simulation.devices import AlwaysOn, Device, Fleet, Network, Phones, resolve_latency
from fedbalancer.simulation.devices.models import ManyDevices, draw_devices

CLIENTS = tuple(f"user-{number}" for number in range(40))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_s": 0}, "batch_s = 0 must be a finite number above 0"),
        ({"batch_s": math.nan}, "batch_s = nan must be"),
        ({"batch_s": True}, "batch_s = True must be"),
        ({"batch_s": 1, "sample_s": 1}, "sample_s = 1.0 must be empty, because batch_s is given"),
        ({"batch_s": 1, "std_s": -1}, "std_s = -1 must be a standard deviation"),
        ({"std_s": 1}, "std_s = 1.0 must be empty"),
        ({"batch_s": 1, "model": "resnet"}, "model = 'resnet' must be a published model: femnist"),
        ({"batch_s": 1, "model": "har", "flops": 1}, "flops = 1.0 must be empty, because model is given"),
        ({"batch_s": 1, "batch_size": 0}, "batch_size = 0 must be a whole number"),
        ({"sample_s": 1, "batch_size": 10}, "batch_size = 10 must be empty"),
        ({"device_class": "medium"}, "device_class = 'medium' must be slow, mid, fast"),
        ({"down_mbit_s": 1}, "up_mbit_s is missing; it must be given"),
        ({"down_mbit_s": 0, "up_mbit_s": 1}, "down_mbit_s = 0 must be"),
        ({"up_std_mbit_s": 1}, "down_mbit_s is missing"),
        ({"online": [(5, 3)]}, r"online = \(5.0, 3.0\) must be intervals with 0 <= start < end"),
        ({"online": [5]}, "must be intervals of two numbers"),
        ({"online": "night"}, "must be intervals of two numbers"),
    ],
)
def test_a_bad_device_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        Device(id="ann", **values)  # type: ignore[arg-type]
    assert "'ann'" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a\nb", 5, None])
def test_an_id_is_printable_text(name: object) -> None:
    with pytest.raises(BadData, match="must be an id"):
        Device(id=name)  # type: ignore[arg-type]


def test_online_intervals_are_sorted_and_merged() -> None:
    assert Device(id="a", online=[(50, 70), (0, 20), (20, 30)]).online == ((0.0, 30.0), (50.0, 70.0))
    assert Device(id="a", online=[]).online == ()


def test_the_period_is_whole_days_unless_given() -> None:
    assert Fleet([Device(id="a")]).period_s == 86400
    assert Fleet([Device(id="a", online=[(0, 86401)])]).period_s == 2 * 86400
    assert Fleet([Device(id="a", online=[(0, 50)])], period_s=100).period_s == 100
    with pytest.raises(BadData, match="device 'a' is online after the period of 40 s"):
        Fleet([Device(id="a", online=[(0, 50)])], period_s=40)
    with pytest.raises(BadSetting, match="period_s"):
        Fleet([Device(id="a")], period_s=0)


def test_an_id_appears_once() -> None:
    with pytest.raises(BadData, match="'a' appears twice"):
        Fleet([Device(id="a"), Device(id="b"), Device(id="a")])


@given(fleets, st.randoms())
def test_the_order_of_devices_does_not_matter(fleet: Fleet, random: object) -> None:
    shuffled = list(fleet.devices)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Fleet(shuffled, fleet.period_s)
    assert other == fleet
    assert other.digest == fleet.digest


def test_a_copy_with_other_devices_forgets_where_it_came_from() -> None:
    fleet = Fleet.synthetic(3)
    assert fleet.to_json()["kind"] == "synthetic"
    assert replace(fleet, devices=fleet.devices[:2]).to_json()["kind"] == "list"


def test_a_client_gets_the_device_of_its_id_and_others_draw_one() -> None:
    fleet = Fleet([Device(id="user-3"), Device(id="x"), Device(id="y"), Device(id="off", online=[])])
    numbers = fleet.assign(CLIENTS, seed=0)
    assigned = [fleet.devices[number].id for number in numbers.tolist()]
    assert assigned[3] == "user-3"
    assert set(assigned) == {"user-3", "x", "y"}, "a device that is never online is not drawn"
    assert fleet.assign(["off"], seed=0).tolist() == [0]
    assert not np.array_equal(numbers, fleet.assign(CLIENTS, seed=1))
    alone = [int(fleet.assign([client], seed=0)[0]) for client in reversed(CLIENTS)]
    assert alone[::-1] == numbers.tolist(), "the draw depends on the client and the seed only"


def test_a_fleet_that_is_never_online_cannot_be_assigned() -> None:
    with pytest.raises(BadData, match="ever online"):
        Fleet([Device(id="off", online=[])]).assign(CLIENTS, seed=0)


def test_the_paper_is_the_default_model() -> None:
    model = Fleet.paper().device_model(CLIENTS, 3, latency="har", network_floor=0.1)
    assert model == Phones(3, resolve_latency("har"), Network(3, floor=0.1))
    assert Fleet.paper().availability(CLIENTS, 3) == AlwaysOn()


def test_devices_without_speed_and_network_are_the_phones_of_the_paper() -> None:
    phones = Fleet.paper().device_model(CLIENTS, 0)
    model = Fleet([Device(id="x")]).device_model(CLIENTS, 0)
    mine, theirs = (draw_devices(each, CLIENTS, 4, 10_000, 20_000) for each in (model, phones))
    for name in ("batch_s", "download_s", "upload_s"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name))
    assert isinstance(model, ManyDevices)
    assert np.array_equal(model.sample_batch_s_many(CLIENTS, 5), phones.sample_batch_s_many(CLIENTS, 5))  # type: ignore[attr-defined]


def test_speed_network_and_classes_of_devices() -> None:
    fleet = Fleet([
        Device(id="user-0", batch_s=2.0, device_class="tablet", down_mbit_s=8, up_mbit_s=4),
        Device(id="user-1", device_class="fast"),
        Device(id="user-2", sample_s=0.5, std_s=0.1),
    ])  # fmt: skip
    clients = CLIENTS[:3]
    model = fleet.device_model(clients, 0, latency={"slow": (5, 0), "mid": (4, 0), "fast": (3, 0)})
    drawn = draw_devices(model, clients, 1, down_bytes=10**6, up_bytes=10**6)
    assert drawn.batch_s[:2].tolist() == [2.0, 0.003]
    assert (drawn.download_s[0], drawn.upload_s[0]) == (1.0, 2.0)
    assert model.expected_network_s("user-0", 10**6, 10**6) == 3.0
    sampled = model.sample_batch_s("user-2", 200)
    assert abs(sampled.mean() - 5.0) < 0.3
    assert 0.7 < sampled.std() < 1.3
    assert model.device_classes(clients) == ["tablet", "fast", ""]  # type: ignore[attr-defined]
    single = model.draw("user-2", 1, 10**6, 10**6)
    assert single.batch_s == drawn.batch_s[2]
    assert single.upload_s == drawn.upload_s[2]


def test_the_floor_limits_slow_networks() -> None:
    fleet = Fleet([Device(id="x", down_mbit_s=8, down_std_mbit_s=16, up_mbit_s=8)])
    model = fleet.device_model(CLIENTS, 0, network_floor=0.5)
    slowest = draw_devices(model, CLIENTS, 1, 10**6, 10**6).download_s.max()
    assert slowest == 2.0


def test_availability_follows_the_intervals() -> None:
    fleet = Fleet([Device(id="user-0", online=[(0, 3600)]), Device(id="user-1"), Device(id="user-2", online=[])])
    online = fleet.availability(CLIENTS[:3], 0)
    assert [online.is_available(client, 5000.0) for client in CLIENTS[:3]] == [False, True, False]
    assert online.is_available("user-0", 86400 + 100.0)
    assert online.elapsed_s("user-0", 3000.0, 700.0) == 86400 - 3000 + 100
    assert online.elapsed_s("user-2", 0.0, 1.0) == math.inf
