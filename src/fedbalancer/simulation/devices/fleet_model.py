"""The device model of a fleet: batch latencies and transfer times of clients that are assigned to devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.randomness import client_keys, normals
from fedbalancer.core.types import FloatArray
from fedbalancer.core.types.state import Positions
from fedbalancer.simulation.devices.fleet import Device
from fedbalancer.simulation.devices.models import MIN_SHARE_OF_MEAN, DeviceDraw, DeviceDraws, Phones, draw_speeds

PLAIN_BATCH = 10
"""Batch size for seconds per sample where no task is known."""
MEGABIT_BYTES = 125_000


def plain_batch_s(device: Device) -> float:
    """Return the mean seconds of a batch as the device states them, without scaling."""
    if device.batch_s is not None:
        return device.batch_s
    assert device.sample_s is not None
    return PLAIN_BATCH * device.sample_s


@dataclass(frozen=True, eq=False)
class FleetDevices:
    """A `DeviceModel` of clients that are assigned to the devices of a fleet.

    Batch latency and network speeds are drawn per client and round from normal distributions, as for `Phones`. Where a
    device has no seconds or no network, the client has those of one of the paper's phones.

    Args:
        clients: Ids of the clients.
        phones: The paper's phones, for what devices do not specify.
        batch_s: Mean and standard deviation of the seconds per batch of every client; NaN: those of the phones.
        mbit_s: Mean down, standard deviation down, mean up and standard deviation up of every client; NaN likewise.
        classes: Class of every client's device; empty if it has none.
        tags: Tags of every client's device, joined by a plus.
    """

    clients: Positions
    phones: Phones
    batch_s: FloatArray
    mbit_s: FloatArray
    classes: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(
        cls, clients: tuple[str, ...], devices: Sequence[Device], phones: Phones, batch_s: Callable[[Device], float]
    ) -> FleetDevices:
        """Make the model.

        Args:
            clients: Ids of the clients.
            devices: The device of every client.
            phones: The paper's phones.
            batch_s: Mean seconds of a batch of the task on a device that has its own seconds.
        """
        latency_s = {name: np.array(row) / 1000 for name, row in phones.latency.items()}

        def batch_row(device: Device) -> FloatArray:
            if device.seconds is not None:
                mean_s = batch_s(device)
                return np.array([mean_s, mean_s * (device.std_s / device.seconds)])
            return latency_s.get(device.device_class, np.full(2, np.nan))

        def network_row(device: Device) -> FloatArray:
            speeds = (device.down_mbit_s, device.down_std_mbit_s, device.up_mbit_s, device.up_std_mbit_s)
            return np.full(4, np.nan) if device.down_mbit_s is None else np.array(speeds, dtype=np.float64)

        distinct = {id(device): (device, batch_row(device), network_row(device)) for device in devices}
        rows = [distinct[id(device)] for device in devices]
        return cls(
            Positions(clients),
            phones,
            np.array([row[1] for row in rows]).reshape(-1, 2),
            np.array([row[2] for row in rows]).reshape(-1, 4),
            tuple(device.device_class if device.has_seconds or device.device_class else "?" for device in devices),
            tuple(device.tags for device in devices),
        )

    def device_classes(self, clients: Sequence[str]) -> list[str]:
        """Return the class of every client's device; that of the drawn phone if the device has no speed."""
        phones = self.phones.device_classes(clients)
        own = [self.classes[row] for row in self.clients.of(clients)]
        return [phone if name == "?" else name for name, phone in zip(own, phones, strict=True)]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the seconds of download plus upload at mean speed."""
        return float(self.expected_network_s_many([client], down_bytes, up_bytes)[0])

    def expected_network_s_many(self, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
        """Return `expected_network_s` of every client."""
        row = self.mbit_s[self.clients.of(clients)]
        own = down_bytes / MEGABIT_BYTES / row[:, 0] + up_bytes / MEGABIT_BYTES / row[:, 2]
        if not np.isnan(own).any():
            return np.asarray(own)
        return np.where(np.isnan(own), self.phones.expected_network_s_many(clients, down_bytes, up_bytes), own)

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return batch latencies as measured before training; the rounds use other draws."""
        return self.sample_batch_s_many([client], count).reshape(count)

    def sample_batch_s_many(self, clients: Sequence[str], count: int) -> FloatArray:
        """Return `sample_batch_s` of every client, one row per client."""
        row = self.batch_s[self.clients.of(clients)]
        mean, std = row[:, :1], row[:, 1:]
        numbers = np.arange(count, dtype=np.uint64)
        keys = client_keys(clients)[:, None]
        drawn = normals(self.phones.seed, "batch latency sample", 0, keys, mean, std, numbers)
        own = np.maximum(drawn, MIN_SHARE_OF_MEAN * mean)
        if not np.isnan(own).any():
            return np.asarray(own)
        return np.where(np.isnan(own), self.phones.sample_batch_s_many(clients, count), own)

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Draw batch latency and transfer times of one client in one round."""
        drawn = self.draw_many([client], round_number, down_bytes, up_bytes)
        return DeviceDraw(float(drawn.batch_s[0]), float(drawn.download_s[0]), float(drawn.upload_s[0]))

    def draw_many(self, clients: Sequence[str], round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
        """Return `draw` of every client."""
        rows, keys, seed = self.clients.of(clients), client_keys(clients), self.phones.seed
        mean, std = self.batch_s[rows].T
        drawn = normals(seed, "batch latency", round_number, keys, mean, std)
        batch_s = np.maximum(drawn, MIN_SHARE_OF_MEAN * mean)
        speed = self.mbit_s[rows]
        floor = self.phones.network.floor
        mbit_s = draw_speeds(seed, round_number, keys, speed[:, ::2], speed[:, 1::2], floor)
        seconds = np.array([down_bytes, up_bytes]) / MEGABIT_BYTES / mbit_s
        if not (np.isnan(batch_s).any() or np.isnan(seconds).any()):
            return DeviceDraws(batch_s, seconds[:, 0], seconds[:, 1])
        phones = self.phones.draw_many(clients, round_number, down_bytes, up_bytes)
        return DeviceDraws(
            np.where(np.isnan(batch_s), phones.batch_s, batch_s),
            np.where(np.isnan(seconds[:, 0]), phones.download_s, seconds[:, 0]),
            np.where(np.isnan(seconds[:, 1]), phones.upload_s, seconds[:, 1]),
        )
