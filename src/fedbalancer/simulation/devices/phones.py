"""The simulated phones of the paper: three classes of batch latency and nineteen networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import Keys, client_keys, normals, tickets
from fedbalancer.core.sums import total
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.simulation.devices.many import DeviceDraw, DeviceDraws
from fedbalancer.simulation.devices.network import Network

CLASS_WEIGHTS: Mapping[str, int] = {"slow": 18820, "mid": 16428, "fast": 159}
"""How many phones of each class the authors counted: 53.2 %, 46.4 % and 0.4 %."""

_CLASSES = tuple(CLASS_WEIGHTS)
_CLASS_ENDS = np.cumsum(list(CLASS_WEIGHTS.values()))

_FEMNIST = {"slow": (1642.0, 99.5), "mid": (588.0, 23.9), "fast": (179.0, 2.3)}

# The authors did not measure UCI-HAR: they scaled FEMNIST by a ratio of model bytes. 25305880 is of an older HAR model
# than the one they train (6410008), but all their HAR logs stand on these numbers, so the ratio is kept as it is.
_HAR_SHARE = 25305880 / 26414840

LATENCY_MS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "femnist": _FEMNIST,
    "celeba": {"slow": (5392.0, 982.5), "mid": (1355.0, 54.6), "fast": (561.0, 20.3)},
    "reddit": {"slow": (2596.0, 335.5), "mid": (916.0, 20.6), "fast": (527.7, 49.0)},
    "shakespeare": {"slow": (28621.0, 1720.7), "mid": (13579.0, 104.6), "fast": (10681.0, 125.6)},
    "har": {name: (mean * _HAR_SHARE, std * _HAR_SHARE) for name, (mean, std) in _FEMNIST.items()},
}
"""Milliseconds per batch, mean and standard deviation, of every task and class; batches of 10, Shakespeare of 100."""

# A normal has no lower end, and a batch that takes no time, or less, would stop the clock. The published rows are at
# least five deviations from this floor, so it only ever acts on a row of the user's own.
_LEAST_SHARE_OF_MEAN = 0.01

_BLOCK = 1 << 16
"""Clients whose samples are drawn together: a million at once would need memory for what is not kept."""


def resolve_latency(latency: str | Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """A latency row by its name, or the user's own one, checked.

    >>> resolve_latency("femnist")["fast"]
    (179.0, 2.3)
    """
    if isinstance(latency, str):
        if latency not in LATENCY_MS:
            raise UnknownName("latency row", latency, LATENCY_MS)
        return dict(LATENCY_MS[latency])
    if not isinstance(latency, Mapping) or set(latency) != set(CLASS_WEIGHTS):
        raise BadSetting(f"latency is {latency!r}; it must map slow, mid and fast to (mean, deviation) in ms")
    return {name: _mean_and_std(name, latency[name]) for name in CLASS_WEIGHTS}


def spread_latency(latency: Mapping[str, tuple[float, float]], spread: float) -> dict[str, tuple[float, float]]:
    """The row with the ratios between its classes to the power of `spread`, around the geometric mean of all phones.

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


def _mean_and_std(name: str, pair: tuple[float, float]) -> tuple[float, float]:
    try:
        mean, std = (float(value) for value in pair)
    except (TypeError, ValueError) as error:
        raise BadSetting(f"latency of {name} is {pair!r}; it must be (mean, deviation) in ms") from error
    if not (math.isfinite(mean) and math.isfinite(std) and mean > 0 and std >= 0):
        raise BadSetting(f"latency of {name} is {pair!r}; the mean must be above 0 ms and the deviation 0 or more")
    return mean, std


@dataclass(frozen=True)
class Phones:
    """A `DeviceModel`: every client is a slow, mid or fast phone for good, drawn by `CLASS_WEIGHTS`.

    One batch latency is drawn per client and round, as published, not one per batch: a phone's whole training of a
    round is faster or slower together.

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
        """slow, mid or fast."""
        return self.device_classes([client])[0]

    def device_classes(self, clients: Sequence[str]) -> list[str]:
        """`device_class` of every client."""
        return [_CLASSES[number] for number in self._class_numbers(client_keys(clients)).tolist()]

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        """Download plus upload at mean speed."""
        return float(self.expected_network_s_many([client], down_bytes, up_bytes)[0])

    def expected_network_s_many(self, clients: Sequence[str], down_bytes: int, up_bytes: int) -> FloatArray:
        """`expected_network_s` of every client."""
        return self.network.expected_s(client_keys(clients), down_bytes, up_bytes)

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        """Batch latencies as measured before training starts; those of the rounds are other draws."""
        return self.sample_batch_s_many([client], count).reshape(count)

    def sample_batch_s_many(self, clients: Sequence[str], count: int) -> FloatArray:
        """`sample_batch_s` of every client, a row each."""
        keys, numbers = client_keys(clients), np.arange(count, dtype=np.uint64)
        sampled = np.empty((len(keys), count))
        for start in range(0, len(keys), _BLOCK):
            block = keys[start : start + _BLOCK, None]
            sampled[start : start + _BLOCK] = self._batch_s("batch latency sample", 0, block, numbers)
        return sampled

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> DeviceDraw:
        """Batch latency and transfer times of one client in one round."""
        drawn = self.draw_many([client], round, down_bytes, up_bytes)
        return DeviceDraw(float(drawn.batch_s[0]), float(drawn.download_s[0]), float(drawn.upload_s[0]))

    def draw_many(self, clients: Sequence[str], round: int, down_bytes: int, up_bytes: int) -> DeviceDraws:
        """`draw` of every client."""
        keys = client_keys(clients)
        batch_s = self._batch_s("batch latency", round, keys, 0)
        return DeviceDraws(batch_s, *self.network.draw_s(keys, round, down_bytes, up_bytes))

    def _class_numbers(self, keys: Keys) -> IndexArray:
        drawn = tickets(self.seed, "device class", 0, keys, int(_CLASS_ENDS[-1]))
        return _CLASS_ENDS.searchsorted(drawn, side="right")

    def _batch_s(self, purpose: str, round: int, keys: Keys, number: int | Keys) -> FloatArray:
        row = self._latency_ms[self._class_numbers(keys)]
        mean, std = row[..., 0], row[..., 1]
        drawn_ms = normals(self.seed, purpose, round, keys, mean, std, number)
        return np.asarray(np.maximum(drawn_ms, _LEAST_SHARE_OF_MEAN * mean) / 1000)
