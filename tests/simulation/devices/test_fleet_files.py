"""Files of fleets: round trips, and errors that name file, line and column."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from any_fleet import fleets
from hypothesis import given

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.simulation.devices import Device, Fleet
from fedbalancer.simulation.devices.fleet_files import fleet_of_table, is_device_model, resolve_devices


@given(fleets)
def test_a_fleet_survives_its_files(fleet: Fleet) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fleet.to_csv(f"{folder}/fleet.csv")
        assert Fleet.from_csv(f"{folder}/fleet.csv") == fleet
        fleet.to_parquet(f"{folder}/fleet.parquet")
        again = Fleet.from_parquet(f"{folder}/fleet.parquet")
    assert again == fleet
    assert again.digest == fleet.digest


@given(fleets)
def test_a_fleet_survives_a_manifest(fleet: Fleet) -> None:
    assert fleet_of_table(json.loads(json.dumps(fleet.to_json()))) == fleet


def read(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.csv"
    path.write_text(text, encoding="utf-8")
    return Fleet.from_csv(path)


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    header = "\ufeffdevice , batch_s,online,up_mbit_s,down_mbit_s\n"
    text = f"{header}ann,0.5,22:00-06:00,1,2\n\n7,,0-10;20-30,,\nbob,1,never,,\n"
    fleet = read(tmp_path, text)
    assert [device.id for device in fleet.devices] == ["7", "ann", "bob"]
    assert fleet.devices[1].online == ((0.0, 21600.0), (79200.0, 86400.0))
    assert fleet.devices[0].online == ((0.0, 10.0), (20.0, 30.0))
    assert fleet.devices[2].online == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header: there is no column device"),
        ("batch_s\n1\n", "header: there is no column device"),
        ("device;batch_s\na;1\n", "line 1: the header is one column, 'device;batch_s'; separate columns by commas"),
        ("device,bach_s\na,1\n", "header: unknown column 'bach_s'; did you mean batch_s"),
        ("device,batch_s,batch_s\na,1,1\n", "header: column batch_s appears twice"),
        ("device,batch_s\n", "has no devices"),
        ("device,batch_s\na,1\nb\n", "line 3 has 1 cells, but the header has 2 columns"),
        ("device,batch_s\na,1\nb,fast\n", "line 3, column batch_s: 'fast' must be a number such as 0.25"),
        ("device,batch_s\na,1\nb,-2\n", "line 3, column batch_s = -2.0 must be a finite number above 0"),
        ("device,batch_s\n,1\n", "line 2, column device = '' must be an id"),
        ("device,batch_s\na,1\nb,1\na,2\n", "line 4, column device: 'a' appears in line 2 already"),
        ("device,batch_s,batch_size\na,1,2.5\n", "line 2, column batch_size: '2.5' must be a whole number"),
        ("device,online\na,0-5 night\n", "line 2, column online: 'night' must be start-end in seconds"),
        ("device,online\na,25:00-26:00\n", "line 2, column online: '25:00-26:00' must be"),
        ("device,online\na,5-5\n", r"line 2, column online = \(5.0, 5.0\) must be intervals"),
        ("device,online,period_s\na,0-5,10\nb,0-5,20\n", "line 3, column period_s: 20.0 differs from 10.0"),
        ("device,online,period_s\na,0-50,10\n", "column online: device 'a' is online after the period"),
        ('device,batch_s\n"a,1\n', "line 2: unexpected end of data"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=message) as caught:
        read(tmp_path, text)
    assert "fleet.csv" in str(caught.value)


def test_a_parquet_file_with_text_and_whole_numbers(tmp_path: Path) -> None:
    frame = pl.DataFrame({"device": [1, 2], "batch_s": [1, 2], "online": ["0-10", None], "period_s": [10, 10]})
    frame.write_parquet(tmp_path / "fleet.parquet")
    fleet = Fleet.from_parquet(tmp_path / "fleet.parquet")
    assert fleet == Fleet([Device(id="1", batch_s=1, online=[(0, 10)]), Device(id="2", batch_s=2)], period_s=10)


def test_a_bad_parquet_file_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "fleet.parquet"
    pl.DataFrame({"device": ["a", "b"], "batch_s": [1.0, 0.0]}).write_parquet(path)
    with pytest.raises(BadData, match=r"row 1, column batch_s = 0.0 must be"):
        Fleet.from_parquet(path)
    pl.DataFrame({"device": ["a"], "batch_s": ["fast"]}).write_parquet(path)
    with pytest.raises(BadData, match="row 0, column batch_s = 'fast' must be"):
        Fleet.from_parquet(path)
    pl.DataFrame({"device": ["a"], "online": [[1.0]]}).write_parquet(path)
    with pytest.raises(BadData, match="row 0, column online: intervals must be pairs"):
        Fleet.from_parquet(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(BadData, match="is not a valid Parquet file"):
        Fleet.from_parquet(path)


def test_a_missing_or_unknown_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="there is no fleet file"):
        Fleet.from_csv(tmp_path / "none.csv")
    with pytest.raises(BadSetting, match=r"must be a file that ends in .csv or .parquet"):
        resolve_devices("fleet.xlsx")
    (tmp_path / "latin.csv").write_bytes(b"device\n\xe9\n")
    with pytest.raises(BadData, match="is not UTF-8 text"):
        Fleet.from_csv(tmp_path / "latin.csv")


def test_the_paper_has_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="no list of devices"):
        Fleet.paper().to_csv(tmp_path / "fleet.csv")
    assert not list(tmp_path.iterdir())


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("device,batch_s\na,1\nb,2\n")
    table = Fleet.from_csv(path).to_json()
    path.write_text("device,batch_s\nb,2.0\na,1\n")
    assert fleet_of_table(table) == Fleet.from_csv(path), "another order of the same devices is the same fleet"
    path.write_text("device,batch_s\na,1\nb,3\n")
    with pytest.raises(BadData, match=r"fleet.csv has changed.*restore the file, or start the run again"):
        fleet_of_table(table)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({}, BadSetting, "needs file or kind"),
        ({"file": "a.csv", "kind": "paper"}, BadSetting, "needs file or kind"),
        ({"file": "a.csv", "slow": 1}, BadSetting, "no other keys.*'slow'"),
        ({"file": 5}, BadSetting, "the file is a text"),
        ({"kind": "sintetic"}, UnknownName, "did you mean synthetic"),
        ({"kind": "synthetic", "slw": 3}, UnknownName, "with kind = 'synthetic' 'slw'; did you mean slow"),
        ({"kind": "fedscale"}, BadSetting, "missing 1 required positional argument: 'devices'"),
    ],
)
def test_a_bad_table_is_refused(table: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fleet_of_table(table)


def test_a_table_names_a_file_beside_it(tmp_path: Path) -> None:
    fleet = Fleet([Device(id="a", batch_s=1)])
    fleet.to_csv(tmp_path / "fleet.csv")
    assert fleet_of_table({"file": "fleet.csv"}, tmp_path) == fleet
    assert fleet_of_table({"kind": "paper"}) == Fleet.paper()
    assert fleet_of_table({"kind": "synthetic", "count": 4, "slow": 1}) == Fleet.synthetic(4, slow=1)


def test_what_devices_of_a_run_may_be() -> None:
    fleet = Fleet([Device(id="a")])
    assert resolve_devices(fleet) is fleet
    assert resolve_devices("paper") == Fleet.paper()
    model = Fleet.paper().device_model(["a"])
    assert is_device_model(model)
    assert not is_device_model(type(model)), "a class is a function that makes one"
    assert resolve_devices(model) is model
    assert resolve_devices(None) is None
    with pytest.raises(BadSetting, match=r"devices is a list; make a fleet of it: fb.Fleet\(devices\)"):
        resolve_devices([Device(id="a")])
    with pytest.raises(BadSetting, match="devices = 5 must be a Fleet"):
        resolve_devices(5)
