"""Fleets: the devices of a user's own population, with the speed, the network and the online hours of each.

`fleet_files` reads and writes fleets, `fleet_import` reads traces of other projects, `fleet_synthetic` draws fleets,
`fleet_model` simulates them, and `fleet_check` finds what is implausible.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.interfaces import Availability, DeviceModel
from fedbalancer.core.randomness import client_keys, tickets
from fedbalancer.core.types import IndexArray
from fedbalancer.simulation.devices.availability import AlwaysOn, Traces
from fedbalancer.simulation.devices.models import CLASS_WEIGHTS, LATENCY_MS, Network, Phones, resolve_latency
from fedbalancer.simulation.devices.trace_files import DAY_S, merge_intervals

if TYPE_CHECKING:
    from fedbalancer.simulation.devices.fleet_synthetic import Distribution, Group

Interval = tuple[float, float]
"""Start and end in seconds of the period; the end is excluded."""
_POSITIVE = ("batch_s", "sample_s", "flops", "down_mbit_s", "up_mbit_s")
_DEVIATIONS = ("std_s", "down_std_mbit_s", "up_std_mbit_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a `Fleet`. Only the id is required; what is missing is drawn as for the paper's phones.

    Args:
        id: Unique id. A client with the same id gets this device.
        batch_s: Mean seconds of a training batch. Excludes `sample_s`.
        sample_s: Mean seconds per training sample, for any batch size.
        std_s: Standard deviation of `batch_s` or `sample_s` between rounds.
        model: Published model that the seconds were measured with: femnist, celeba, reddit, shakespeare or har.
            Default: the model of the task that runs.
        flops: Floating-point operations of a training step per sample, of the model that was measured. Excludes
            `model`.
        batch_size: Samples per batch of the measurement of `batch_s`. Default: that of `model`, else the task's.
        device_class: Class of the device, for the tables. A device without seconds must be slow, mid or fast, and
            has the latency of this class.
        down_mbit_s: Mean download speed in Mbit/s (10⁶ bits per second).
        down_std_mbit_s: Standard deviation of the download speed between rounds.
        up_mbit_s: Mean upload speed in Mbit/s.
        up_std_mbit_s: Standard deviation of the upload speed between rounds.
        online: Intervals (start, end) in seconds in which the device may work. None: always; empty: never.
        tags: Tags of the client, such as `pixel+canary`, for the policies that select by tags.

    Raises:
        BadData: If a value is invalid.

    >>> Device(id="ann", batch_s=0.5, down_mbit_s=20, up_mbit_s=5, online=[(0, 21600)]).online
    ((0.0, 21600.0),)
    """

    id: str
    batch_s: float | None = None
    sample_s: float | None = None
    std_s: float = 0.0
    model: str | None = None
    flops: float | None = None
    batch_size: int | None = None
    device_class: str = ""
    down_mbit_s: float | None = None
    down_std_mbit_s: float = 0.0
    up_mbit_s: float | None = None
    up_std_mbit_s: float = 0.0
    online: Sequence[Interval] | None = None
    tags: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id or not self.id.isprintable():
            raise BadData(f"device = {self.id!r} must be an id: text of printable characters")
        for name in _POSITIVE:
            if getattr(self, name) is not None:
                self._set(name, self._number(name, "a finite number above 0", lambda value: value > 0))
        for name in _DEVIATIONS:
            self._set(name, self._number(name, "a standard deviation of 0 or more", lambda value: value >= 0))
        self._check_measurement()
        if (self.down_mbit_s is None) != (self.up_mbit_s is None):
            raise self._problem("down_mbit_s" if self.down_mbit_s is None else "up_mbit_s", "given with the other one")
        if self.down_mbit_s is None and (self.down_std_mbit_s or self.up_std_mbit_s):
            raise self._problem("down_mbit_s", "given, because its standard deviation is")
        if self.online is not None:
            self._set("online", self._merge(self.online))

    @property
    def has_seconds(self) -> bool:
        """Whether the device has its own speed."""
        return self.batch_s is not None or self.sample_s is not None

    @property
    def seconds(self) -> float | None:
        """`batch_s` or `sample_s`."""
        return self.batch_s if self.batch_s is not None else self.sample_s

    def to_row(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default or each.name == "id"
        }

    def _check_measurement(self) -> None:
        if self.batch_s is not None and self.sample_s is not None:
            raise self._problem("sample_s", "empty, because batch_s is given")
        if self.model is not None and self.model not in LATENCY_MS:
            raise self._problem("model", f"a published model: {', '.join(LATENCY_MS)}")
        if self.model is not None and self.flops is not None:
            raise self._problem("flops", "empty, because model is given")
        if self.batch_size is not None:
            size = self.batch_size
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise self._problem("batch_size", "a whole number of samples, at least 1")
            self._set("batch_size", int(size))
            if self.batch_s is None:
                raise self._problem("batch_size", "empty, because there is no batch_s that it belongs to")
        for name in ("device_class", "tags"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).isprintable():
                raise self._problem(name, "text")
        if not self.has_seconds:
            for name in ("std_s", "model", "flops"):
                if getattr(self, name):
                    raise self._problem(name, "empty, because there are no batch_s or sample_s that it belongs to")
            if self.device_class and self.device_class not in CLASS_WEIGHTS:
                raise self._problem("device_class", f"{', '.join(CLASS_WEIGHTS)} for a device without batch_s")

    def _number(self, name: str, right: str, fits: Callable[[float], bool]) -> float:
        value = getattr(self, name)
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number) and fits(number):
                return number
        raise self._problem(name, right)

    def _merge(self, online: Sequence[Interval]) -> tuple[Interval, ...]:
        try:
            rows = [(float(start), float(end)) for start, end in online]
        except (TypeError, ValueError):
            raise self._problem("online", "intervals of two numbers, (start_s, end_s)") from None
        for start, end in rows:
            if not (0 <= start < end < math.inf):
                raise self._problem("online", "intervals with 0 <= start < end", (start, end))
        if all(rows[at][1] < rows[at + 1][0] for at in range(len(rows) - 1)):
            return tuple(rows)
        merged = merge_intervals(np.array(rows, dtype=np.float64))
        return tuple((float(start), float(end)) for start, end in merged)

    def _problem(self, name: str, right: str, value: Any = None) -> BadData:
        shown = value if value is not None else getattr(self, name)
        text = "is missing; it" if shown is None else f"= {shown!r}"
        return BadData(f"{name} {text} must be {right} (device {self.id!r})")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Fleet:
    """The devices on which a run is simulated: how fast each is, its network, and when it is online.

    A client gets the device that has its id. Any other client gets a device that is drawn, with replacement, from all
    devices that are ever online. The draw depends on the client's id and the seed only. What a device does not specify
    (speed, network) is drawn as for the paper's phones. The order of the devices does not matter.

    Args:
        devices: The devices. Empty: the paper's phones, as in `Fleet.paper`.
        period_s: Seconds after which the online intervals repeat. Default: the whole days that contain all of them.

    Raises:
        BadData: If an id appears twice, or an interval ends after the period.

    >>> fleet = Fleet([Device(id="old", batch_s=2.0), Device(id="new", batch_s=0.2)])
    >>> fleet
    Fleet(2 devices)
    >>> import fedbalancer as fb
    >>> result = fb.run("synthetic", "fedavg+1t", users=20, rounds=2, timing_only=True, devices=fleet)
    >>> len(result.rounds)
    2
    """

    devices: Sequence[Device] = ()
    period_s: float | None = None
    origin: Mapping[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        devices = sorted(self.devices, key=lambda device: device.id)
        for device, following in pairwise(devices):
            if device.id == following.id:
                raise BadData(f"device {device.id!r} appears twice; every device needs its own id")
        object.__setattr__(self, "devices", tuple(devices))
        latest = max((device.online[-1] for device in devices if device.online), key=lambda each: each[1], default=None)
        if self.period_s is None:
            days = math.ceil(latest[1] / DAY_S) if latest is not None else 1
            object.__setattr__(self, "period_s", DAY_S * days)
            return
        if not (math.isfinite(self.period_s) and self.period_s > 0):
            raise BadSetting(f"period_s = {self.period_s} must be a number of seconds above 0")
        object.__setattr__(self, "period_s", float(self.period_s))
        if latest is not None and latest[1] > self.period_s:
            late = next(device.id for device in devices if device.online and device.online[-1][1] > self.period_s)
            raise BadData(f"device {late!r} is online after the period of {self.period_s:g} s; use a longer period_s")

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return f"Fleet({len(self):,} devices)" if self.devices else "Fleet.paper()"

    @classmethod
    def paper(cls) -> Fleet:
        """Return the default: phones of three classes with the paper's latencies and networks, always online.

        >>> Fleet.paper()
        Fleet.paper()
        """
        return cls()._from({"kind": "paper"})

    @classmethod
    def synthetic(
        cls,
        count: int = 1000,
        *,
        slow: Group | None = None,
        mid: Group | None = None,
        fast: Group | None = None,
        bandwidth: Distribution | Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Fleet:
        """Draw a fleet of three classes with any shares, speeds and bandwidths.

        A distribution is a number (all equal), a mapping of a name to its parameters, or a function of a NumPy
        generator and a count. Names: `{"lognormal": [median, sigma]}`, `{"normal": [mean, std]}` (cut at 1% of the
        mean), `{"uniform": [low, high]}` and `{"choice": [a, b, ...]}`.

        Args:
            count: Number of devices.
            slow: Share of slow devices, or a mapping with `share`, `batch_s` or `sample_s` (a distribution), `spread`
                (standard deviation between rounds as a share of the mean), `model`, `flops`, `batch_size` and
                `bandwidth`. Without seconds, the devices have the latency of their class. Classes without a share have
                the rest, in the paper's proportions. If all three have one, the shares are relative.
            mid: Share of mid devices, as for `slow`.
            fast: Share of fast devices, as for `slow`.
            bandwidth: Mbit/s in both directions (a distribution), or a mapping with `down`, `up` and `spread`. Default:
                the paper's networks.
            seed: Seed of the fleet. It is independent of the seeds of runs.

        Raises:
            BadSetting: If a share or a distribution is invalid.

        >>> fleet = Fleet.synthetic(10, slow=0.5, mid=0.3, fast={"share": 0.2, "batch_s": 0.1}, bandwidth=20)
        >>> [device.device_class for device in fleet.devices].count("slow"), fleet.devices[0].up_mbit_s
        (5, 20.0)
        """
        from fedbalancer.simulation.devices.fleet_synthetic import draw_fleet, plain_options

        groups = {"slow": slow, "mid": mid, "fast": fast}
        fleet = cls(draw_fleet(count, groups, bandwidth, seed))
        return fleet._from(plain_options({"count": count, **groups, "bandwidth": bandwidth, "seed": seed}))

    @classmethod
    def from_csv(cls, path: Path | str) -> Fleet:
        """Read a fleet from a CSV file with a line per device; the page "Fleets" describes the columns.

        Args:
            path: The file.

        Raises:
            BadData: If the file is invalid; the message names line and column.
            MissingData: If there is no such file.

        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/fleet.csv"
        >>> Fleet([Device(id="ann", batch_s=0.5)]).to_csv(path)
        >>> Fleet.from_csv(path).devices[0].batch_s
        0.5
        """
        from fedbalancer.simulation.devices.fleet_files import csv_rows

        return cls._from_rows(path, csv_rows)

    @classmethod
    def from_parquet(cls, path: Path | str) -> Fleet:
        """Read a fleet from a Parquet file with the columns of the CSV file.

        Args:
            path: The file.

        Raises:
            BadData: If the file is invalid; the message names row and column.
            MissingData: If there is no such file.
        """
        from fedbalancer.simulation.devices.fleet_files import parquet_rows

        return cls._from_rows(path, parquet_rows)

    @classmethod
    def from_fedscale(
        cls,
        devices: Path | str,
        availability: Path | str | None = None,
        *,
        count: int | None = None,
        model: str | None = None,
        flops: float | None = None,
        seed: int = 0,
    ) -> Fleet:
        """Import FedScale's traces. The files are pickles; only numbers, text and containers are accepted.

        A training step takes three times the traced inference, as in FedScale. Both directions have the traced speed.
        Device n gets the n-th availability trace, and the first one again after the last.

        Args:
            devices: The file `client_device_capacity`.
            availability: The file `client_behave_trace`. Default: always online.
            count: Number of devices, drawn from all. Default: all.
            model: Published model that the traced milliseconds stand for. Default: the model of the task that runs.
            flops: Operations of a training step per sample, instead of `model`.
            seed: Seed of the draw of `count` devices.

        Raises:
            BadData: If a file is not such a trace, or contains code.
            MissingData: If there is no such file.
        """
        from fedbalancer.simulation.devices.fleet_import import read_fedscale

        fleet = cls(*read_fedscale(Path(devices), availability, count, model, flops, seed))
        paths = {"devices": _absolute(devices), "availability": _absolute(availability)}
        options = {"count": count, "model": model, "flops": flops, "seed": seed}
        return fleet._from({"kind": "fedscale", **paths, **options})

    @classmethod
    def from_flash(
        cls,
        traces: Path | str,
        speeds: Path | str | None = None,
        models: Path | str | None = None,
        *,
        start: str | None = None,
        seed: int = 0,
    ) -> Fleet:
        """Import FLASH's traces.

        A phone is online while it is charging, on Wi-Fi and locked, as far as the file records these states.

        Args:
            traces: The file `state_traces.json`, `user_behavior_tiny.json`, or a file of intervals such as
                `ready_strict.json`; also `archive.zip:member`.
            speeds: The file `speed_distri.json`; every phone gets the network of one of its users. Default: the paper's
                networks, which are the same users.
            models: Folder with `real2benchmark.json`, `benchmark2score.json` and `supported_devices.json`, which map
                phones to slow, mid and fast. Default: classes are drawn by the paper's shares.
            start: Date of second 0, as 2020-01-02. Default: the day on which the recording starts.
            seed: Seed of the networks.

        Raises:
            BadData: If a file is not such a trace.
            MissingData: If there is no such file.
        """
        from fedbalancer.simulation.devices.fleet_import import read_flash

        fleet = cls(*read_flash(traces, speeds, models, start, seed))
        paths = {"traces": _absolute(traces), "speeds": _absolute(speeds), "models": _absolute(models)}
        return fleet._from({"kind": "flash", **paths, "start": start, "seed": seed})

    def to_csv(self, path: Path | str) -> None:
        """Write the fleet to a CSV file, which `from_csv` reads back to an equal fleet.

        Args:
            path: The file. It is replaced atomically.

        Raises:
            BadSetting: If the fleet has no devices.
        """
        from fedbalancer.simulation.devices.fleet_files import write_csv

        write_csv(self, Path(path))

    def to_parquet(self, path: Path | str) -> None:
        """Write the fleet to a Parquet file, which `from_parquet` reads back to an equal fleet.

        Args:
            path: The file. It is replaced atomically.

        Raises:
            BadSetting: If the fleet has no devices.
        """
        from fedbalancer.simulation.devices.fleet_files import write_parquet

        write_parquet(self, Path(path))

    @property
    def has_online(self) -> bool:
        """Whether at least one device is not always online."""
        return any(device.online is not None for device in self.devices)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content; equal fleets have the same digest."""
        rows = [self.period_s, *(device.to_row() for device in self.devices)]
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()

    def assign(self, clients: Sequence[str], seed: int) -> IndexArray:
        """Return the index of each client's device: the one with its id, or one that is drawn.

        Args:
            clients: Ids of the clients.
            seed: The run's seed.

        Raises:
            BadData: If a client needs a draw and no device is ever online.
        """
        number_of = {device.id: number for number, device in enumerate(self.devices)}
        pool = np.array(
            [n for n, device in enumerate(self.devices) if device.online is None or device.online], np.int64
        )
        own = np.array([number_of.get(client, -1) for client in clients], dtype=np.int64)
        if (own >= 0).all():
            return own
        if not len(pool):
            raise BadData("no device of this fleet is ever online, so none can be assigned")
        drawn = pool[tickets(seed, "fleet device", 0, client_keys(clients), len(pool))]
        return np.where(own >= 0, own, drawn)

    def device_model(
        self,
        clients: Sequence[str],
        seed: int = 0,
        *,
        latency: str | Mapping[str, tuple[float, float]] = "femnist",
        network_floor: float | None = None,
        batch_s: Callable[[Device], float] | None = None,
    ) -> DeviceModel:
        """Return the simulated speed of these clients.

        Args:
            clients: Ids of the clients.
            seed: The run's seed.
            latency: Latency of devices without their own seconds: a row of the paper, or milliseconds by class.
            network_floor: Lowest network speed, as a share of the mean speed.
            batch_s: Seconds of a batch of the task on a device that has its own seconds. Default: the seconds of the
                device, times 10 samples if they are seconds per sample.
        """
        from fedbalancer.simulation.devices.fleet_model import FleetDevices, plain_batch_s

        phones = Phones(seed=seed, latency=resolve_latency(latency), network=Network(seed=seed, floor=network_floor))
        if not self.devices:
            return phones
        assigned = [self.devices[number] for number in self.assign(clients, seed).tolist()]
        return FleetDevices.of(tuple(clients), assigned, phones, batch_s if batch_s is not None else plain_batch_s)

    def availability(self, clients: Sequence[str], seed: int = 0) -> Availability:
        """Return when these clients are online.

        Args:
            clients: Ids of the clients.
            seed: The run's seed.
        """
        if not self.has_online:
            return AlwaysOn()
        assert self.period_s is not None
        always = np.array([[0.0, self.period_s]])
        arrays = [
            always if device.online is None else np.array(device.online, dtype=np.float64).reshape(-1, 2)
            for device in self.devices
        ]
        numbers = self.assign(clients, seed).tolist()
        return Traces({client: arrays[number] for client, number in zip(clients, numbers, strict=True)}, self.period_s)

    def to_json(self) -> dict[str, Any]:
        """Return the fleet as plain values: where it comes from with its digest, or its devices."""
        rows = {"kind": "list", "period_s": self.period_s, "devices": [device.to_row() for device in self.devices]}
        return {**(self.origin if self.origin is not None else rows), "sha256": self.digest}

    @classmethod
    def _from_rows(cls, path: Path | str, read_rows: Callable[[Path], Iterable[Any]]) -> Fleet:
        from fedbalancer.simulation.devices.fleet_files import make_devices

        return cls(*make_devices(Path(path), read_rows(Path(path))))._from({"file": _absolute(path)})

    def _from(self, origin: Mapping[str, Any] | None) -> Fleet:
        object.__setattr__(self, "origin", origin)
        return self


def _absolute(path: Path | str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
