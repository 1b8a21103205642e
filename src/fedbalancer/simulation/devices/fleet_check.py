"""Figures of a fleet, and warnings about implausible values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.fleet import Device, Fleet
from fedbalancer.simulation.devices.models import CLASS_WEIGHTS
from fedbalancer.simulation.devices.trace_files import DAY_S

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
HOUR_S = 3600.0
LONG_BATCH_S, LONG_SAMPLE_S = 3600.0, 360.0
"""Seconds per batch and per sample that no device needs: an hour for ten samples."""
MILLISECONDS = {"batch_s": 100.0, "sample_s": 10.0}
"""Medians above which seconds look like milliseconds. The slowest published batch takes 29 s."""
MOST_MBIT_S = 10_000.0
KILOBITS = 1000.0
"""Median above which Mbit/s look like kbit/s or bytes."""
LEAST_MBIT_S = 0.01
MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class FleetSummary:
    """The figures of a fleet.

    Args:
        devices: Number of devices.
        classes: Number of devices by class; "" for none.
        quantiles: Values at `QUANTILES` by column, for columns that any device has.
        counts: Number of devices that have the column.
        online_by_hour: Share of the devices that are online, by hour of the day.
        online_share: Share of the period in which each device is online.
        period_s: Seconds after which the online intervals repeat.
        problems: What is implausible.
    """

    devices: int
    classes: dict[str, int]
    quantiles: dict[str, list[float]]
    counts: dict[str, int]
    online_by_hour: list[float]
    online_share: FloatArray
    period_s: float
    problems: list[str]


def summarise(fleet: Fleet) -> FleetSummary:
    """Return the figures of a fleet that has devices."""
    columns = {
        name: np.array([value for device in fleet.devices if (value := getattr(device, name)) is not None])
        for name in ("batch_s", "sample_s", "down_mbit_s", "up_mbit_s")
    }
    hours = online_hours(fleet)
    counted = Counter(device.device_class for device in fleet.devices)
    return FleetSummary(
        devices=len(fleet),
        classes={name: counted[name] for name in sort_classes(counted)},
        quantiles={name: np.quantile(values, QUANTILES).tolist() for name, values in columns.items() if len(values)},
        counts={name: len(values) for name, values in columns.items() if len(values)},
        online_by_hour=hours.mean(axis=0).tolist(),
        online_share=online_shares(fleet),
        period_s=fleet.period_s or DAY_S,
        problems=[*find_problems(fleet), *_equal_values(fleet.devices)],
    )


def online_shares(fleet: Fleet) -> FloatArray:
    """Return the share of the period in which each device is online."""
    period_s = fleet.period_s or DAY_S
    online = [[(0.0, period_s)] if device.online is None else device.online for device in fleet.devices]
    return np.array([sum(end - start for start, end in rows) / period_s for rows in online])


def online_hours(fleet: Fleet) -> FloatArray:
    """Return the share of each hour of the day in which each device is online, one row of 24 per device."""
    period_s = fleet.period_s or DAY_S
    rows = [
        (number, start, end)
        for number, device in enumerate(fleet.devices)
        for start, end in ([(0.0, period_s)] if device.online is None else device.online)
    ]
    owner = np.array([row[0] for row in rows], dtype=np.int64)
    start, end = (np.array([row[at] for row in rows], dtype=np.float64) for at in (1, 2))
    seconds, whole = np.zeros((len(fleet), 24)), np.zeros(24)
    for number in range(int(np.ceil(period_s / HOUR_S))):
        low, high = number * HOUR_S, min((number + 1) * HOUR_S, period_s)
        overlap = np.clip(np.minimum(end, high) - np.maximum(start, low), 0, None)
        seconds[:, number % 24] += np.bincount(owner, overlap, len(fleet))
        whole[number % 24] += high - low
    return seconds / np.where(whole > 0, whole, 1.0)


def find_problems(fleet: Fleet) -> list[str]:
    """Return what is valid but implausible about a fleet, one sentence each.

    >>> find_problems(Fleet([Device(id="a", batch_s=420.0), Device(id="b", batch_s=900.0)]))
    ['the median of batch_s is 660: these look like milliseconds; seconds are expected']
    """
    return [*_speed_problems(fleet.devices), *_network_problems(fleet.devices), *_online_problems(fleet.devices)]


def _speed_problems(devices: Sequence[Device]) -> Iterator[str]:
    for name, longest in (("batch_s", LONG_BATCH_S), ("sample_s", LONG_SAMPLE_S)):
        values = {device.id: value for device in devices if (value := getattr(device, name)) is not None}
        if not values:
            continue
        middle = float(np.median(list(values.values())))
        if middle > MILLISECONDS[name]:
            yield f"the median of {name} is {middle:g}: these look like milliseconds; seconds are expected"
        else:
            slow = [device for device, value in values.items() if value > longest]
            yield from _named(slow, f"{name} above {longest:g} s, longer than any phone needs")
    wide = [device.id for device in devices if device.seconds is not None and device.std_s > device.seconds]
    yield from _named(wide, "a std_s above the mean; the fraction 0.01 of the mean is the lower limit of a draw")


def _network_problems(devices: Sequence[Device]) -> Iterator[str]:
    for name in ("down_mbit_s", "up_mbit_s"):
        values = {device.id: value for device in devices if (value := getattr(device, name)) is not None}
        if not values:
            continue
        middle = float(np.median(list(values.values())))
        if middle > KILOBITS:
            yield f"the median of {name} is {middle:g}: these look like kbit/s or bytes; Mbit/s are expected"
        else:
            yield from _named([key for key, value in values.items() if value > MOST_MBIT_S], f"{name} above 10 Gbit/s")
        yield from _named([key for key, value in values.items() if value < LEAST_MBIT_S], f"{name} below 10 kbit/s")


def _online_problems(devices: Sequence[Device]) -> Iterator[str]:
    never = [device.id for device in devices if device.online is not None and not device.online]
    yield from _named(never, "no online interval; only a client with the same id gets such a device")
    ends = [device.online[-1][1] for device in devices if device.online]
    if ends and max(ends) <= 48:
        yield f"the last online interval ends at {max(ends):g}: these look like hours; seconds are expected"
    elif ends and max(ends) > 366 * DAY_S:
        yield (
            f"the last online interval ends at {max(ends):g}: these look like milliseconds or dates; seconds from the "
            "start of the recording are expected"
        )


def _named(ids: Sequence[str], what: str) -> Iterator[str]:
    if ids:
        more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
        verb = "has" if len(ids) == 1 else "have"
        yield f"{', '.join(ids[:MOST_NAMED])}{more} {verb} {what}"


def _equal_values(devices: Sequence[Device]) -> Iterator[str]:
    for name in ("batch_s", "sample_s", "down_mbit_s", "up_mbit_s", "online"):
        values = [value for device in devices if (value := getattr(device, name)) is not None]
        if len(values) > 2 and len(set(values)) == 1:
            shown = f", {values[0]:g}" if name != "online" else " intervals"
            yield f"all {len(values):,} devices have the same {name}{shown}"


def sort_classes(classes: Collection[str]) -> list[str]:
    """Return the distinct classes: slow, mid and fast first, then the others by name.

    >>> sort_classes(["tablet", "fast", "", "slow", "fast"])
    ['slow', 'fast', '', 'tablet']
    """
    known = [name for name in CLASS_WEIGHTS if name in set(classes)]
    return [*known, *sorted(set(classes) - set(known))]
