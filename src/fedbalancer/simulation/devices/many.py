"""Many devices at once: by the model's own columns where it has them, else by asking it client by client.

A `DeviceModel` or an `Availability` need only know one client at a time. One that also has the methods of `ManyDevices`
or `ManyAvailable` is asked for a whole cohort, or a whole population, in one call; both ways must give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.interfaces import Availability, DeviceModel
from fedbalancer.core.types import FloatArray


@dataclass(frozen=True, slots=True)
class DeviceDraw:
    """Seconds per batch, and seconds of the download and the upload, of one client in one round."""

    batch_s: float
    download_s: float
    upload_s: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceDraws:
    """The same of many clients, a value each."""

    batch_s: FloatArray
    download_s: FloatArray
    upload_s: FloatArray


@runtime_checkable
class ManyDevices(Protocol):
    """The extension of `DeviceModel` to columns."""

    def expected_network_s_many(self, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
        """`expected_network_s` of every client."""

    def sample_batch_s_many(self, clients: Sequence[str], count: int) -> FloatArray:
        """`sample_batch_s` of every client, a row each."""

    def draw_many(self, clients: Sequence[str], round: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
        """`draw` of every client."""


@runtime_checkable
class ManyAvailable(Protocol):
    """The extension of `Availability` to columns."""

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        """`is_available` of every client."""


def expected_network_s(devices: DeviceModel, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
    """Download plus upload of every client at mean speed."""
    if isinstance(devices, ManyDevices):
        return devices.expected_network_s_many(clients, down_bytes, up_bytes)
    return np.array([devices.expected_network_s(client, down_bytes, up_bytes) for client in clients], dtype=np.float64)


def sample_batch_s(devices: DeviceModel, clients: Sequence[str], count: int) -> FloatArray:
    """A row of `count` batch latencies for every client, as sampled before training starts."""
    if isinstance(devices, ManyDevices):
        return devices.sample_batch_s_many(clients, count)
    return np.array([devices.sample_batch_s(client, count) for client in clients]).reshape(len(clients), count)


def draw(devices: DeviceModel, clients: Sequence[str], round: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
    """Batch latency and transfer times of every client in one round."""
    if isinstance(devices, ManyDevices):
        return devices.draw_many(clients, round, down_bytes, up_bytes)
    each = [devices.draw(client, round, down_bytes, up_bytes) for client in clients]
    columns = np.array([(one.batch_s, one.download_s, one.upload_s) for one in each]).reshape(len(each), 3).T
    return DeviceDraws(*np.ascontiguousarray(columns))


def are_available(availability: Availability, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
    """Whether every client may work at this second of the clock."""
    if isinstance(availability, ManyAvailable):
        return availability.are_available(clients, at_s)
    return np.fromiter((availability.is_available(client, at_s) for client in clients), bool, len(clients))
