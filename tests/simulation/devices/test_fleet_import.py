"""Traces of FedScale and FLASH, from small files in their formats."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.simulation.devices import PROFILES, Device, Fleet
from fedbalancer.simulation.devices.fleet_files import fleet_of_table


def dump(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def capacity(tmp_path: Path) -> Path:
    entries = {number: {"computation": 10.0 * number, "communication": 1000.0 * number} for number in range(1, 5)}
    return dump(tmp_path / "client_device_capacity", entries)


def trace(active: list[int], inactive: list[int], finish: int = 1000) -> dict[str, Any]:
    return {"duration": 5, "inactive": inactive, "finish_time": finish, "active": active, "model": "CPH1801"}


def test_fedscale_devices(capacity: Path) -> None:
    fleet = Fleet.from_fedscale(capacity, model="femnist")
    assert [device.id for device in fleet.devices] == ["1", "2", "3", "4"]
    first = fleet.devices[0]
    assert first.sample_s == pytest.approx(0.03), "training takes three times the inference of 10 ms"
    assert (first.model, first.online) == ("femnist", None)
    assert first.down_mbit_s == first.up_mbit_s == pytest.approx(1.024)
    assert fleet_of_table(fleet.to_json()) == fleet


def test_fedscale_availability(capacity: Path, tmp_path: Path) -> None:
    traces = {1: trace([100, 500], [200, 600]), 2: trace([700], [50]), 3: trace([0], [250], finish=500)}
    fleet = Fleet.from_fedscale(capacity, dump(tmp_path / "client_behave_trace", traces))
    online = {device.id: device.online for device in fleet.devices}
    assert online["1"] == ((100.0, 200.0), (500.0, 600.0))
    assert online["2"] == ((700.0, 1000.0),), "without an end, until the trace ends"
    assert online["3"] == ((0.0, 250.0), (500.0, 750.0)), "a shorter trace repeats"
    assert online["4"] == online["1"], "the first trace follows the last"
    assert fleet.period_s == 1000


def test_some_fedscale_devices_are_drawn(capacity: Path) -> None:
    some = Fleet.from_fedscale(capacity, count=2)
    assert len(some) == 2
    assert some == Fleet.from_fedscale(capacity, count=2)
    drawn = {
        tuple(device.id for device in Fleet.from_fedscale(capacity, count=2, seed=seed).devices) for seed in range(9)
    }
    assert len(drawn) > 1
    with pytest.raises(BadSetting, match="from 1 to 4"):
        Fleet.from_fedscale(capacity, count=5)


class Trap:
    """The content of a malicious pickle."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch trapped",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=r"contains (posix|nt|os).system; only numbers"):
        Fleet.from_fedscale(dump(tmp_path / "evil", {1: Trap()}))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        ({}, "not empty"),
        ({1: {"computation": 1.0}}, "id 1: .* must have the numbers computation and communication"),
        ({1: {"computation": -1.0, "communication": 2.0}}, "id 1: sample_s"),
        ({1: 5}, "id 1: 5 must have"),
    ],
)
def test_other_pickles_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=message):
        Fleet.from_fedscale(dump(tmp_path / "capacity", content))


def test_broken_and_missing_files(capacity: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x80\x04broken")
    with pytest.raises(BadData, match="is not a valid pickle"):
        Fleet.from_fedscale(tmp_path / "broken")
    with pytest.raises(MissingData):
        Fleet.from_fedscale(tmp_path / "none")
    with pytest.raises(BadData, match="id 7: finish_time"):
        Fleet.from_fedscale(capacity, dump(tmp_path / "traces", {7: {"active": [], "inactive": []}}))
    with pytest.raises(BadData, match="id 7: active and inactive"):
        Fleet.from_fedscale(capacity, dump(tmp_path / "traces", {7: {"finish_time": 5, "active": 3, "inactive": []}}))


NIGHT = "\n".join(
    f"2020-01-0{day}\t{state}".replace("\t", f" {time}\t")
    for day, time, state in [
        (2, "22:00:00", "wifi"),
        (2, "22:30:00", "Battery_Charged_On"),
        (2, "23:00:00", "screen_lock"),
        (2, "23:10:00", "80.0%"),
        (3, "06:00:00", "screen_unlock"),
        (3, "07:00:00", "4G"),
    ]
)


def test_flash_state_traces(tmp_path: Path) -> None:
    content = {
        "a": {"guid": "ann", "model": "CPH1801", "messages": NIGHT},
        "b": {"guid": "bob", "model": "RMX1941", "messages": "2020-01-02 10:00:00\twifi\nnonsense\n"},
    }
    fleet = Fleet.from_flash(write(tmp_path / "state_traces.json", content))
    hour = 3600.0
    assert [(device.id, device.online) for device in fleet.devices] == [("ann", ((23 * hour, 30 * hour),)), ("bob", ())]
    assert fleet.period_s == 2 * 86400
    later = Fleet.from_flash(tmp_path / "state_traces.json", start="2020-01-03")
    assert later.devices[0].online == ((0.0, 6 * hour),)
    assert fleet_of_table(fleet.to_json()) == fleet


def test_old_flash_messages_have_no_separators(tmp_path: Path) -> None:
    messages = (
        "2018-03-06 01:00:00battery_charged_on2018-03-06 02:00:00battery_okay2018-03-06 03:00:00battery_charged_off\x00"
    )
    content = {"0": {"user_id": 77, "messages": messages}}
    fleet = Fleet.from_flash(write(tmp_path / "user_behavior_tiny.json", content))
    assert fleet == Fleet([Device(id="77", online=[(3600, 3 * 3600)])]), "only charging is recorded, so it decides"


def test_flash_intervals_networks_and_classes(tmp_path: Path) -> None:
    ready = write(tmp_path / "ready_strict.json", {"ann": [[0, 100], [50, 200]], "bob": [], "cy": [[5, 6]]})
    speed = {"down_u": 1000.0, "down_sigma": 100.0, "up_u": 500.0, "up_sigma": 0.0}
    fleet = Fleet.from_flash(ready, write(tmp_path / "speed_distri.json", {"x": speed}))
    ann = fleet.devices[0]
    assert ann.online == ((0.0, 200.0),)
    assert (ann.down_mbit_s, ann.up_mbit_s) == (8.192, 4.096)
    assert fleet.devices[1].online == ()
    models = tmp_path / "device_util"
    models.mkdir()
    write(models / "real2benchmark.json", {"P1": "Phone 1", "P2": "unknown"})
    write(models / "benchmark2score.json", {"Phone 1": 900, "S": 10, "M": 500, "F": 1000})
    write(models / "supported_devices.json", ["S", "M", "F"])
    content = {key: {"guid": key, "model": phone, "messages": NIGHT} for key, phone in (("a", "P1"), ("b", "P2"))}
    classes = Fleet.from_flash(write(tmp_path / "traces.json", content), models=models)
    assert [device.device_class for device in classes.devices] == ["fast", ""]


def test_the_networks_of_the_paper_are_those_of_flash(tmp_path: Path) -> None:
    names = ("down_u", "down_sigma", "up_u", "up_sigma")
    speeds = {str(at): dict(zip(names, row, strict=True)) for at, row in enumerate(PROFILES)}
    fleet = Fleet.from_flash(write(tmp_path / "r.json", {"a": [[0, 5]]}), write(tmp_path / "s.json", speeds))
    expected = [down * 1024 * 8 / 1e6 for down, _, _, _ in PROFILES]
    assert any(fleet.devices[0].down_mbit_s == pytest.approx(each) for each in expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must be a JSON object"),
        ({"a": 5}, "id 'a': 5 must have messages"),
        ({"a": {"messages": "nothing"}}, "has no messages such as"),
        ({"a": {"messages": "2020-01-02 10:00:00\twifi"}}, "no phone is ever online"),
        ({"a": [[1, "x"]]}, "id 'a', index 0"),
    ],
)
def test_other_flash_files_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=message):
        Fleet.from_flash(write(tmp_path / "traces.json", content))


def test_bad_flash_options(tmp_path: Path) -> None:
    traces = write(tmp_path / "traces.json", {"a": {"messages": NIGHT}})
    with pytest.raises(BadSetting, match="start = 'today' must be a date"):
        Fleet.from_flash(traces, start="today")
    with pytest.raises(BadData, match="down_u, down_sigma, up_u, up_sigma in kB/s"):
        Fleet.from_flash(traces, write(tmp_path / "speeds.json", {"a": {"down_u": 1}}))
    with pytest.raises(MissingData):
        Fleet.from_flash(traces, models=tmp_path / "none")
