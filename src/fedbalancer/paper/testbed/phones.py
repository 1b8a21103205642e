"""The recorded phones of the paper's test bed: how long each took to train a batch and to talk to the server.

21 Android phones were measured in three sittings, about ten rounds each (section 4.6, Table 4). Of every phone and
round the file has the seconds per batch and the seconds of the network, which were taken on the server's clock. How
these divide into download and upload is not known: the phones' own clocks were up to 13 hours off. So both ways take
half.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.paths import data_folder
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.models import DeviceDraw

FILE, ARCHIVE = "fedbalancer_testbed_21phones.json", "devices.zip"
SITTINGS = ("experiments_batch1", "experiments_batch2", "experiments_batch3")
BATCH, NETWORK = "per_batch_train_times", "networking_times"


@dataclass(frozen=True, eq=False)
class Phone:
    """Recorded rounds of one phone: seconds per batch and seconds of the network, one value per round."""

    name: str
    batch_s: FloatArray
    network_s: FloatArray


@dataclass(frozen=True, eq=False)
class RecordedPhones:
    """A `DeviceModel`: every client has one of the phones, and in every round does as that phone did in one of its
    recorded rounds, drawn by seed, round and client. The same seed gives every method the same rounds."""

    seed: int
    phone_of: Mapping[str, Phone]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """The mean of the recorded rounds: the paper sampled every phone before the experiments."""
        return float(self.phone_of[client].network_s.mean())

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """The recorded batch latencies, from the start again where more are asked for."""
        return np.resize(self.phone_of[client].batch_s, count)

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """One recorded round."""
        phone = self.phone_of[client]
        row = int(stream(self.seed, "recorded round", round, client).integers(len(phone.batch_s)))
        way_s = float(phone.network_s[row]) / 2
        return DeviceDraw(float(phone.batch_s[row]), way_s, way_s)


def find_file() -> Path | None:
    """The file of the recorded phones, or the archive that holds it, in the data folder."""
    for name in (FILE, ARCHIVE):
        if (data_folder() / name).is_file():
            return data_folder() / name
    return None


def read_phones(path: Path, seed: int) -> tuple[Phone, ...]:
    """All phones in the sitting of this seed (the three take turns), in order of their numbers."""
    sitting = SITTINGS[seed % len(SITTINGS)]
    content = _content(path)
    if sitting not in content:
        raise BadData(f"{path} has no {sitting!r}; it must be the file of the paper's 21 phones, {FILE}")
    recorded = content[sitting]
    try:
        names = sorted(recorded, key=int)
        phones = tuple(
            Phone(name, _seconds(recorded[name][BATCH]), _seconds(recorded[name][NETWORK])) for name in names
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}, {sitting}: not the recorded seconds of phones ({error!r})") from error
    for phone in phones:
        if len(phone.batch_s) == 0 or len(phone.batch_s) != len(phone.network_s):
            raise BadData(
                f"{path}, {sitting}, phone {phone.name}: {BATCH} and {NETWORK} must have the same rounds, one or more"
            )
    return phones


def handed_out(clients: Sequence[str], phones: Sequence[Phone]) -> dict[str, Phone]:
    """A phone for every client: in order, and where there are fewer clients spread over all phones, because the slow
    ones come first. Where there are more, phones are used again."""
    step = max(len(phones) / len(clients), 1.0)
    return {client: phones[int(number * step) % len(phones)] for number, client in enumerate(clients)}


def _content(path: Path) -> dict[str, Any]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                text = archive.read(FILE)
        else:
            text = path.read_bytes()
        content = json.loads(text)
    except OSError as error:
        raise MissingData(f"the phones in {path} cannot be read: {error}; give another file with --phones") from error
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadData(f"{path} is no JSON file of phones, nor an archive that holds {FILE}: {error}") from error
    if not isinstance(content, dict):
        raise BadData(f"{path} must hold an object of sittings, {', '.join(SITTINGS)}")
    return content


def _seconds(values: Sequence[float]) -> FloatArray:
    seconds = np.array(values, dtype=np.float64)
    if seconds.ndim != 1 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError(f"seconds must be positive numbers, not {values!r:.60}")
    return seconds
