"""Device models: batch latency and transfer times of every client.

A `DeviceModel` answers for one client at a time. One that also has the methods of `ManyDevices` is asked for many
clients in one call, and must give the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.errors import BadData, BadSetting, UnknownName
from fedbalancer.core.interfaces import DeviceModel
from fedbalancer.core.randomness import Keys, client_keys, normals, tickets
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.core.types.round import total

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

DOWNLOAD_KB_BYTES = 1024
UPLOAD_KB_BYTES = (1000, 1024)

PROFILES: tuple[tuple[float, float, float, float], ...] = (
    (7491.4, 3369.29842, 4935.2, 2767.319309),
    (4054.8, 1819.527895, 3006.2, 890.082446),
    (2370.212121, 1388.184246, 2774.242424, 1096.948965),
    (9913.0, 1551.039965, 6635.410256, 1459.541704),
    (4208.662791, 1481.615975, 2974.465116, 833.157174),
    (3778.454545, 2843.436249, 2631.613636, 1576.359474),
    (3472.741935, 1276.731234, 5140.580645, 2277.356146),
    (4668.421053, 612.605378, 3205.473684, 419.354123),
    (3297.695652, 771.327959, 2336.608696, 1609.948169),
    (4283.575758, 1560.971765, 3641.606061, 1495.017278),
    (3658.142857, 1315.892194, 2546.857143, 1089.044231),
    (7214.076923, 3363.213412, 4039.692308, 2189.022433),
    (8885.471698, 1999.111337, 6278.566038, 489.10085),
    (5125.0, 2087.604479, 3729.75, 461.47943),
    (7271.266667, 1914.01374, 5742.533333, 1964.127995),
    (4317.628571, 1264.95222, 3285.685714, 1018.296639),
    (6708.066667, 6738.474896, 664.6, 312.000171),
    (17332.681818, 11181.572208, 5641.454545, 2549.768879),
    (3176.806452, 1837.991548, 430.967742, 157.726894),
)
"""Download mean, download deviation, upload mean and upload deviation of 19 real users, in kB/s."""

_PROFILES = np.array(PROFILES)

CLASS_WEIGHTS: Mapping[str, int] = {"slow": 18820, "mid": 16428, "fast": 159}
"""Phones of each class in the authors' count: 53.2%, 46.4% and 0.4%."""

_CLASSES = tuple(CLASS_WEIGHTS)
_CLASS_ENDS = np.cumsum(list(CLASS_WEIGHTS.values()))

_FEMNIST = {"slow": (1642.0, 99.5), "mid": (588.0, 23.9), "fast": (179.0, 2.3)}

# The authors did not measure UCI-HAR: they scaled FEMNIST by a ratio of model bytes. 25305880 belongs to an older HAR
# model than the one they train (6410008), but all their HAR logs use this ratio, so it is kept.
_HAR_SHARE = 25305880 / 26414840

LATENCY_MS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "femnist": _FEMNIST,
    "celeba": {"slow": (5392.0, 982.5), "mid": (1355.0, 54.6), "fast": (561.0, 20.3)},
    "reddit": {"slow": (2596.0, 335.5), "mid": (916.0, 20.6), "fast": (527.7, 49.0)},
    "shakespeare": {"slow": (28621.0, 1720.7), "mid": (13579.0, 104.6), "fast": (10681.0, 125.6)},
    "har": {name: (mean * _HAR_SHARE, std * _HAR_SHARE) for name, (mean, std) in _FEMNIST.items()},
}
"""Mean and standard deviation of the milliseconds per batch, by task and class. Batches of 10; Shakespeare: 100."""

MIN_SHARE_OF_MEAN = 0.01
"""Lower bound of a drawn latency, because a normal distribution has none. The published rows never reach it."""

_BLOCK = 1 << 16
"""Clients whose latencies are sampled together, to limit memory."""


@dataclass(frozen=True, slots=True)
class DeviceDraw:
    """Times of one client in one round.

    Args:
        batch_s: Seconds per batch.
        download_s: Seconds of the download.
        upload_s: Seconds of the upload.
    """

    batch_s: float
    download_s: float
    upload_s: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceDraws:
    """Times of many clients in one round, one value per client.

    Args:
        batch_s: Seconds per batch.
        download_s: Seconds of the download.
        upload_s: Seconds of the upload.
    """

    batch_s: FloatArray
    download_s: FloatArray
    upload_s: FloatArray


@runtime_checkable
class ManyDevices(Protocol):
    """Optional methods of a `DeviceModel` that answer for many clients at once."""

    def expected_network_s_many(self, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
        """Return `expected_network_s` of every client."""

    def sample_batch_s_many(self, clients: Sequence[str], count: int) -> FloatArray:
        """Return `sample_batch_s` of every client, one row per client."""

    def draw_many(self, clients: Sequence[str], round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
        """Return `draw` of every client."""


def estimate_network_s(devices: DeviceModel, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
    """Return the seconds of download plus upload at each client's mean speed.

    Args:
        devices: The device model.
        clients: Ids of the clients.
        down_bytes: Bytes of the download.
        up_bytes: Bytes of the upload.
    """
    if isinstance(devices, ManyDevices):
        return devices.expected_network_s_many(clients, down_bytes, up_bytes)
    return np.array([devices.expected_network_s(client, down_bytes, up_bytes) for client in clients], dtype=np.float64)


def sample_batch_s(devices: DeviceModel, clients: Sequence[str], count: int) -> FloatArray:
    """Return `count` batch latencies of every client, as measured before training; one row per client."""
    if isinstance(devices, ManyDevices):
        return devices.sample_batch_s_many(clients, count)
    return np.array([devices.sample_batch_s(client, count) for client in clients]).reshape(len(clients), count)


def draw_devices(
    devices: DeviceModel, clients: Sequence[str], round_number: int, down_bytes: int, up_bytes: int
) -> DeviceDraws:
    """Draw batch latency and transfer times of every client for one round.

    Args:
        devices: The device model.
        clients: Ids of the clients.
        round_number: The round.
        down_bytes: Bytes of the download.
        up_bytes: Bytes of the upload.

    Raises:
        BadSetting: If the device model does not return seconds.
    """
    if isinstance(devices, ManyDevices):
        return devices.draw_many(clients, round_number, down_bytes, up_bytes)
    draws = [devices.draw(client, round_number, down_bytes, up_bytes) for client in clients]
    try:
        rows = np.array([(each.batch_s, each.download_s, each.upload_s) for each in draws], dtype=np.float64)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadSetting(
            f"devices: {type(devices).__name__}.draw must return a DeviceDraw of seconds: {error}"
        ) from error
    columns = rows.reshape(len(draws), 3)
    odd = np.flatnonzero(~(columns >= 0).all(axis=1))
    if len(odd):
        raise BadSetting(
            f"devices: {type(devices).__name__}.draw returned {draws[odd[0]]} for client {clients[odd[0]]!r}; seconds "
            "must be 0 or more"
        )
    return DeviceDraws(*np.ascontiguousarray(columns.T))


@dataclass(frozen=True)
class Network:
    """Draws transfer times from the measured speeds of 19 real users.

    Every client has the profile of one of these users. In each round its download and upload speed are drawn from
    normal distributions, and drawn again while they are not positive. Speeds may be close to zero, so the times have a
    heavy tail; `floor` limits it.

    Args:
        seed: The run's seed.
        floor: Lowest speed, as a share of the client's mean speed. None, as published, sets no limit.
        upload_kb_bytes: Bytes per kilobyte of an upload. The authors' UCI-HAR logs use 1000 for the upload and 1024 for
            the download, which looks like a mistake; the default is 1024 for both.

    >>> round(Network(seed=0).profile_expected_s(3, down_bytes=6410008, up_bytes=6410008), 3)
    1.575
    """

    seed: int
    floor: float | None = None
    upload_kb_bytes: int = 1024

    def __post_init__(self) -> None:
        if self.floor is not None and not 0 <= self.floor <= 1:
            raise BadSetting(
                f"network floor is {self.floor}; it must be a share of the mean speed from 0 to 1, or None"
            )
        if self.upload_kb_bytes not in UPLOAD_KB_BYTES:
            raise BadSetting(f"upload_kb_bytes is {self.upload_kb_bytes}; it must be 1024, or 1000 as in the HAR logs")

    def profiles(self, keys: Keys) -> IndexArray:
        """Return the number of each client's profile; clients are identified by their random keys."""
        return tickets(self.seed, "network profile", 0, keys, len(PROFILES))

    def expected_s(self, keys: Keys, down_bytes: int, up_bytes: int) -> FloatArray:
        """Return the seconds of download plus upload at each client's mean speeds (not the mean of the times)."""
        seconds = [self.profile_expected_s(profile, down_bytes, up_bytes) for profile in range(len(PROFILES))]
        return np.array(seconds)[self.profiles(keys)]

    def profile_expected_s(self, profile: int, down_bytes: int, up_bytes: int) -> float:
        """Return the seconds of download plus upload at the mean speeds of a profile."""
        down_kb_s, _, up_kb_s, _ = PROFILES[profile]
        return down_bytes / DOWNLOAD_KB_BYTES / down_kb_s + up_bytes / self.upload_kb_bytes / up_kb_s

    def draw_s(self, keys: Keys, round_number: int, down_bytes: int, up_bytes: int) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of each client's download and upload in one round."""
        kilobytes = np.array([down_bytes / DOWNLOAD_KB_BYTES, up_bytes / self.upload_kb_bytes])
        seconds = kilobytes / self._draw_kb_s(keys, round_number)
        return seconds[:, 0], seconds[:, 1]

    def _draw_kb_s(self, keys: Keys, round_number: int) -> FloatArray:
        table = _PROFILES[self.profiles(keys)]
        return draw_speeds(self.seed, round_number, keys, table[:, ::2], table[:, 1::2], self.floor)


def draw_speeds(
    seed: int, round_number: int, keys: Keys, mean: FloatArray, std: FloatArray, floor: float | None
) -> FloatArray:
    """Draw one row of download and upload speed per client, again while a speed is not positive.

    Args:
        seed: The run's seed.
        round_number: The round.
        keys: Random keys of the clients.
        mean: Mean speeds, one row of download and upload per client.
        std: Standard deviations, likewise.
        floor: Lowest speed, as a share of the mean speed. None: no limit.
    """
    ways = np.arange(2, dtype=np.uint64)
    speeds = normals(seed, "network speed", round_number, keys[:, None], mean, std, ways)
    drawn = 2
    while (again := speeds <= 0).any():
        row, way = np.nonzero(again)
        speeds[again] = normals(
            seed, "network speed", round_number, keys[row], mean[again], std[again], ways[way] + drawn
        )
        drawn += 2
    return speeds if floor is None else np.maximum(speeds, floor * mean)


def resolve_latency(latency: str | Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return a latency row by its name, or check a custom one.

    Args:
        latency: A name in `LATENCY_MS`, or (mean, deviation) in milliseconds for slow, mid and fast.

    Returns:
        Mean and deviation in milliseconds by device class.

    Raises:
        UnknownName: If there is no row of this name.
        BadSetting: If a custom row is malformed.

    >>> resolve_latency("femnist")["fast"]
    (179.0, 2.3)
    """
    if isinstance(latency, str):
        if latency not in LATENCY_MS:
            raise UnknownName("latency row", latency, LATENCY_MS)
        return dict(LATENCY_MS[latency])
    if not isinstance(latency, Mapping) or set(latency) != set(CLASS_WEIGHTS):
        raise BadSetting(f"latency is {latency!r}; it must map slow, mid and fast to (mean, deviation) in ms")
    return {name: _check_mean_and_std(name, latency[name]) for name in CLASS_WEIGHTS}


def spread_latency(latency: Mapping[str, tuple[float, float]], spread: float) -> dict[str, tuple[float, float]]:
    """Raise the ratios between the device classes to the power of `spread`, around the geometric mean of all phones.

    Args:
        latency: Mean and deviation in milliseconds by device class.
        spread: The power: 1 changes nothing, 0 makes all classes equally fast.

    >>> {name: round(mean) for name, (mean, _) in spread_latency(resolve_latency("femnist"), 2).items()}
    {'slow': 2671, 'mid': 342, 'fast': 32}
    """
    row = resolve_latency(latency)
    if spread == 1:
        return row
    logs = {name: math.log(mean) for name, (mean, _) in row.items()}
    middle = math.exp(total(CLASS_WEIGHTS[name] * log for name, log in logs.items()) / total(CLASS_WEIGHTS.values()))
    factor = {name: (mean / middle) ** (spread - 1) for name, (mean, _) in row.items()}
    return {name: (mean * factor[name], std * factor[name]) for name, (mean, std) in row.items()}


def _check_mean_and_std(name: str, pair: tuple[float, float]) -> tuple[float, float]:
    try:
        mean, std = (float(value) for value in pair)
    except (TypeError, ValueError) as error:
        raise BadSetting(f"latency of {name} is {pair!r}; it must be (mean, deviation) in ms") from error
    if not (math.isfinite(mean) and math.isfinite(std) and mean > 0 and std >= 0):
        raise BadSetting(f"latency of {name} is {pair!r}; the mean must be above 0 ms and the deviation 0 or more")
    return mean, std


@dataclass(frozen=True)
class Phones:
    """The paper's device model: every client is permanently a slow, mid or fast phone, drawn by `CLASS_WEIGHTS`.

    One batch latency is drawn per client and round, as published, so all batches of a round take equally long.

    Args:
        seed: The run's seed.
        latency: A latency row, see `resolve_latency`.
        network: Draws the transfer times.

    >>> phones = Phones(seed=0, latency=resolve_latency("har"), network=Network(seed=0))
    >>> phones.draw("ann", 1, 1000, 1000) == phones.draw("ann", 1, 1000, 1000)
    True
    """

    seed: int
    latency: Mapping[str, tuple[float, float]]
    network: Network
    _latency_ms: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency", resolve_latency(self.latency))
        object.__setattr__(self, "_latency_ms", np.array([self.latency[name] for name in _CLASSES]))

    def device_class(self, client: str) -> str:
        """Return slow, mid or fast."""
        return self.device_classes([client])[0]

    def device_classes(self, clients: Sequence[str]) -> list[str]:
        """Return `device_class` of every client."""
        return [_CLASSES[number] for number in self._class_numbers(client_keys(clients)).tolist()]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the seconds of download plus upload at mean speed."""
        return float(self.expected_network_s_many([client], down_bytes, up_bytes)[0])

    def expected_network_s_many(self, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
        """Return `expected_network_s` of every client."""
        return self.network.expected_s(client_keys(clients), down_bytes, up_bytes)

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return batch latencies as measured before training; the rounds use other draws."""
        return self.sample_batch_s_many([client], count).reshape(count)

    def sample_batch_s_many(self, clients: Sequence[str], count: int) -> FloatArray:
        """Return `sample_batch_s` of every client, one row per client."""
        keys, numbers = client_keys(clients), np.arange(count, dtype=np.uint64)
        sampled = np.empty((len(keys), count))
        for start in range(0, len(keys), _BLOCK):
            block = keys[start : start + _BLOCK, None]
            sampled[start : start + _BLOCK] = self._draw_batch_s("batch latency sample", 0, block, numbers)
        return sampled

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Draw batch latency and transfer times of one client in one round."""
        drawn = self.draw_many([client], round_number, down_bytes, up_bytes)
        return DeviceDraw(float(drawn.batch_s[0]), float(drawn.download_s[0]), float(drawn.upload_s[0]))

    def draw_many(self, clients: Sequence[str], round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
        """Return `draw` of every client."""
        keys = client_keys(clients)
        batch_s = self._draw_batch_s("batch latency", round_number, keys, 0)
        return DeviceDraws(batch_s, *self.network.draw_s(keys, round_number, down_bytes, up_bytes))

    def _class_numbers(self, keys: Keys) -> IndexArray:
        drawn = tickets(self.seed, "device class", 0, keys, int(_CLASS_ENDS[-1]))
        return _CLASS_ENDS.searchsorted(drawn, side="right")

    def _draw_batch_s(self, purpose: str, round_number: int, keys: Keys, number: int | Keys) -> FloatArray:
        row = self._latency_ms[self._class_numbers(keys)]
        mean, std = row[..., 0], row[..., 1]
        drawn_ms = normals(self.seed, purpose, round_number, keys, mean, std, number)
        return np.asarray(np.maximum(drawn_ms, MIN_SHARE_OF_MEAN * mean) / 1000)


@dataclass(frozen=True, eq=False)
class Replay:
    """A `DeviceModel` that repeats recorded draws, to replay somebody else's run round by round.

    The recorded seconds belong to the recorded model, so the numbers of bytes are ignored.

    Args:
        draws: Draws by (round, client).
        batch_s_10: Batch latencies of each client sampled before training (ten, as published).
        network_s: Expected download plus upload of each client.

    Raises:
        BadData: From its methods, if something was not recorded.

    >>> replay = Replay({(1, "ann"): DeviceDraw(0.5, 2.0, 3.0)}, {"ann": [0.5, 0.6]}, {"ann": 4.0})
    >>> replay.draw("ann", 1, 0, 0).upload_s
    3.0
    """

    draws: Mapping[tuple[int, str], DeviceDraw]
    batch_s_10: Mapping[str, ArrayLike]
    network_s: Mapping[str, float]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Return the recorded expectation."""
        return float(_look_up(self.network_s, client, f"expected network seconds of client {client!r}"))

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Return the first `count` recorded batch latencies."""
        recorded = _look_up(self.batch_s_10, client, f"sampled batch latencies of client {client!r}")
        values = np.array(recorded, dtype=np.float64)
        if len(values) < count:
            raise BadData(f"client {client!r} has {len(values)} recorded batch latencies, fewer than {count}")
        return values[:count]

    def draw(self, client: str, round_number: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Return the recorded draw."""
        return _look_up(self.draws, (round_number, client), f"draw of client {client!r} in round {round_number}")


def _look_up(records: Mapping[_Key, _Value], key: _Key, what: str) -> _Value:
    try:
        return records[key]
    except KeyError:
        raise BadData(f"the recording has no {what}; replay only the rounds and clients that were recorded") from None
