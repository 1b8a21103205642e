"""Devices in one round: one of them, or a column of them."""

from __future__ import annotations

from dataclasses import dataclass

from fedbalancer.types import FloatArray


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
