"""One device in one round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceDraw:
    """Seconds per batch, and seconds of the download and the upload, of one client in one round."""

    batch_s: float
    download_s: float
    upload_s: float
