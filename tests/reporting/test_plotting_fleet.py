"""The picture of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbalancer.reporting.plotting import MOST_DEVICES, plot_fleet, write_figure
from fedbalancer.simulation.devices import Device, Fleet


def test_who_is_how_fast_and_when_online(tmp_path: Path) -> None:
    fleet = Fleet([
        Device(id="a", batch_s=2, device_class="tablet $x$", down_mbit_s=8, up_mbit_s=4, online=[(0, 43200)]),
        Device(id="b", batch_s=0.5, device_class="fast", down_mbit_s=80, up_mbit_s=4),
    ])  # fmt: skip
    figure = plot_fleet(fleet, "my $fleet.csv")
    speeds, shares, rows = figure.axes
    offsets: list[Any] = [drawn.get_offsets() for drawn in speeds.collections]
    points = {tuple(point) for each in offsets for point in each.round(9).tolist()}
    assert points == {(2.0, 8.0), (0.5, 80.0)}
    stairs: Any = shares.patches[0]
    assert stairs.get_data().values.tolist() == [1.0] * 12 + [0.5] * 12
    picture: Any = rows.images[0].get_array()
    assert picture[:, 20].tolist() == [1.0, 0.0], "the fastest is at the top"
    assert write_figure(figure, tmp_path / "fleet.png").read_bytes()[:4] == b"\x89PNG"
    assert b"my $fleet.csv" in write_figure(plot_fleet(fleet, "my $fleet.csv"), tmp_path / "fleet.svg").read_bytes()


def test_many_devices_without_speeds_fit() -> None:
    figure = plot_fleet(Fleet.synthetic(2000), "many")
    picture: Any = figure.axes[2].images[0].get_array()
    assert picture.shape == (MOST_DEVICES, 24)
    assert "(400 of 2,000)" in figure.axes[2].get_ylabel()
