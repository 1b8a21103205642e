"""The recorded phones of the paper's test bed: seconds per batch and seconds of the network.

21 Android phones were measured in three sessions of about ten rounds each (section 4.6, Table 4). For every phone and
round the file has the seconds per batch and the seconds of the network, measured on the server's clock. How the latter
divide into download and upload is unknown, because the phones' clocks were off by up to 13 hours; each gets half.
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
from fedbalancer.core.files import data_folder
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.models import DeviceDraw

FILE, ARCHIVE = "fedbalancer_testbed_21phones.json", "devices.zip"
SESSIONS = ("experiments_batch1", "experiments_batch2", "experiments_batch3")
BATCH, NETWORK = "per_batch_train_times", "networking_times"


@dataclass(frozen=True, eq=False)
class Phone:
    """Recorded rounds of one phone.

    Args:
        name: Number of the phone in the file.
        batch_s: Seconds per batch, one value per round.
        network_s: Seconds of the network, one value per round.
    """

    name: str
    batch_s: FloatArray
    network_s: FloatArray


@dataclass(frozen=True, eq=False)
class RecordedPhones:
    """A `DeviceModel` that replays recorded rounds, drawn by seed, round and client.

    The same seed gives every method the same rounds.

    Args:
        seed: Seed of the draws.
        phone_of: The phone of every client.
    """

    seed: int
    phone_of: Mapping[str, Phone]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the mean of the recorded rounds: the paper sampled every phone before the experiments."""
        return float(self.phone_of[client].network_s.mean())

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return the first `count` recorded batch latencies, repeated if there are fewer."""
        return np.resize(self.phone_of[client].batch_s, count)

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Return one recorded round."""
        phone = self.phone_of[client]
        row = int(stream(self.seed, "recorded round", round_number, client).integers(len(phone.batch_s)))
        way_s = float(phone.network_s[row]) / 2
        return DeviceDraw(float(phone.batch_s[row]), way_s, way_s)


def find_file() -> Path | None:
    """Return the file of the recorded phones, or the archive with it, in the data folder; None if absent."""
    for name in (FILE, ARCHIVE):
        if (data_folder() / name).is_file():
            return data_folder() / name
    return None


def read_phones(path: Path, seed: int) -> tuple[Phone, ...]:
    """Read all phones of one session, ordered by number.

    Args:
        path: The JSON file, or the archive with it.
        seed: Selects the session: `seed` modulo 3.

    Returns:
        The phones.

    Raises:
        BadData: If the file has another format.
    """
    session = SESSIONS[seed % len(SESSIONS)]
    content = _content(path)
    if session not in content:
        raise BadData(f"{path} has no {session!r}; it must be the file of the paper's 21 phones, {FILE}")
    recorded = content[session]
    try:
        names = sorted(recorded, key=int)
        phones = tuple(
            Phone(name, _seconds(recorded[name][BATCH]), _seconds(recorded[name][NETWORK])) for name in names
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}, {session}: not the recorded seconds of phones ({error!r})") from error
    for phone in phones:
        if len(phone.batch_s) == 0 or len(phone.batch_s) != len(phone.network_s):
            raise BadData(
                f"{path}, {session}, phone {phone.name}: {BATCH} and {NETWORK} must have the same rounds, one or more"
            )
    return phones


def assign_phones(clients: Sequence[str], phones: Sequence[Phone]) -> dict[str, Phone]:
    """Assign a phone to every client, spread over all phones, because the slow ones come first.

    Args:
        clients: The clients.
        phones: The recorded phones.
    """
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
        raise MissingData(f"cannot read the phones in {path}: {error}; choose another file with --phones") from error
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadData(f"{path} is neither a JSON file of phones nor an archive with {FILE}: {error}") from error
    if not isinstance(content, dict):
        raise BadData(f"{path} must contain an object with the sessions {', '.join(SESSIONS)}")
    return content


def _seconds(values: Sequence[float]) -> FloatArray:
    seconds = np.array(values, dtype=np.float64)
    if seconds.ndim != 1 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError(f"seconds must be positive numbers, not {values!r:.60}")
    return seconds
