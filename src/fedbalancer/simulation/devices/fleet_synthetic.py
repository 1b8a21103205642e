"""Draws fleets from shares and distributions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.fleet import Device
from fedbalancer.simulation.devices.models import CLASS_WEIGHTS, MIN_SHARE_OF_MEAN

Distribution = float | Mapping[str, Sequence[float]] | Callable[[np.random.Generator, int], ArrayLike]
"""A number, a name with parameters, or a function of a generator and a count."""
Group = float | Mapping[str, Any]
"""Share of a class, or a mapping with its share and its speed."""
GROUP_KEYS = ("share", "batch_s", "sample_s", "spread", "model", "flops", "batch_size", "bandwidth")
BANDWIDTH_KEYS = ("down", "up", "spread")


def draw_fleet(
    count: int, groups: Mapping[str, Group | None], bandwidth: Distribution | Mapping[str, Any] | None, seed: int
) -> list[Device]:
    """Draw the devices of a fleet.

    Args:
        count: Number of devices.
        groups: Share, or share and speed, by class.
        bandwidth: Mbit/s; see `Fleet.synthetic`.
        seed: Seed of the fleet.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 10**6:
        raise BadSetting(f"count = {count!r} must be a number of devices from 1 to 1,000,000")
    tables = {name: _group(name, group) for name, group in groups.items()}
    counts = _split(count, _shares({name: table.get("share") for name, table in tables.items()}))
    digits = len(str(count - 1))
    devices: list[Device] = []
    for name, table in tables.items():
        rng = stream(seed, "synthetic fleet", 0, name)
        columns = _draw_columns(name, table, table.get("bandwidth", bandwidth), counts[name], rng)
        first = len(devices)
        devices += [
            Device(
                id=f"device-{first + row:0{digits}}", device_class=name, **{key: values[row] for key, values in columns}
            )
            for row in range(counts[name])
        ]
    return devices


def plain_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of a synthetic fleet as plain values for a manifest; None if one is a function."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps({"kind": "synthetic", **options}))
    except TypeError:
        return None
    return plain


def _group(name: str, group: Group | None) -> dict[str, Any]:
    table = dict(group) if isinstance(group, Mapping) else {} if group is None else {"share": group}
    _check_keys(name, table, GROUP_KEYS)
    share = table.get("share", 0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < math.inf:
        raise BadSetting(f"{name} = {group!r} must have a share of 0 or more, such as 0.5 or {{'share': 0.5, ...}}")
    if "batch_s" not in table and "sample_s" not in table and table.keys() - {"share", "bandwidth"}:
        extra = sorted(table.keys() - {"share", "bandwidth"})[0]
        raise BadSetting(f"{name}: {extra} needs batch_s or sample_s, the seconds that it belongs to")
    return table


def _shares(given: Mapping[str, float | None]) -> dict[str, float]:
    """Return the shares of all classes; classes without one have the rest, in the paper's proportions."""
    stated = {name: share for name, share in given.items() if share is not None}
    if len(stated) == len(given):
        return stated
    rest = 1 - math.fsum(stated.values())
    if rest < -1e-9:
        raise BadSetting(f"the shares of {', '.join(stated)} add up to {1 - rest:g}; they must be at most 1")
    weights = {name: CLASS_WEIGHTS[name] for name in given if name not in stated}
    return {**stated, **{name: max(rest, 0.0) * weight / sum(weights.values()) for name, weight in weights.items()}}


def _split(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Split a count by shares; what is left over goes to the largest remainders."""
    whole = math.fsum(shares.values())
    if whole <= 0:
        raise BadSetting("the shares of slow, mid and fast are all 0; one must be above 0")
    exact = {name: count * share / whole for name, share in shares.items()}
    counts = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: count - sum(counts.values())]:
        counts[name] += 1
    return counts


def _draw_columns(
    name: str, table: Mapping[str, Any], bandwidth: Any, count: int, rng: np.random.Generator
) -> list[tuple[str, list[Any]]]:
    """Draw the values of all devices of a class, by field."""
    columns: list[tuple[str, list[Any]]] = []
    for key in ("batch_s", "sample_s"):
        if key in table:
            mean = draw(f"{name}: {key}", table[key], count, rng)
            columns += [(key, mean.tolist()), ("std_s", (mean * _spread(name, table)).tolist())]
    columns += [(key, [table[key]] * count) for key in ("model", "flops", "batch_size") if key in table]
    if bandwidth is None:
        return columns
    table = bandwidth if isinstance(bandwidth, Mapping) and bandwidth.keys() & set(BANDWIDTH_KEYS) else {
        "down": bandwidth, "up": bandwidth,
    }  # fmt: skip
    _check_keys("bandwidth", table, BANDWIDTH_KEYS)
    spread = _spread("bandwidth", table)
    for way in ("down", "up"):
        if way not in table:
            raise BadSetting(f"bandwidth = {bandwidth!r} must have both down and up, in Mbit/s")
        mean = draw(f"bandwidth: {way}", table[way], count, rng)
        columns += [(f"{way}_mbit_s", mean.tolist()), (f"{way}_std_mbit_s", (mean * spread).tolist())]
    return columns


def draw(what: str, distribution: Distribution, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw positive numbers from a distribution.

    Args:
        what: What is drawn, for errors.
        distribution: A number, a name with parameters, or a function.
        count: How many to draw.
        rng: Random generator.

    Raises:
        BadSetting: If the distribution is invalid or draws a number that is not positive.
    """
    if callable(distribution):
        values = np.broadcast_to(np.asarray(distribution(rng, count), dtype=np.float64), (count,))
    elif isinstance(distribution, Mapping):
        values = _draw_named(what, distribution, count, rng)
    else:
        values = np.full(count, distribution if isinstance(distribution, int | float) else np.nan, dtype=np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise BadSetting(f"{what} = {distribution!r} must give numbers above 0: a number, {_NAMES}")
    return values


_NAMES = "{'lognormal': [median, sigma]}, {'normal': [mean, std]}, {'uniform': [low, high]} or {'choice': [a, b]}"


def _draw_named(what: str, table: Mapping[str, Any], count: int, rng: np.random.Generator) -> FloatArray:
    if len(table) != 1:
        raise BadSetting(f"{what} = {table!r} must have one distribution: {_NAMES}")
    ((name, values),) = table.items()
    if name not in ("lognormal", "normal", "uniform", "choice"):
        raise UnknownName("distribution", str(name), ("lognormal", "normal", "uniform", "choice"))
    try:
        numbers = np.array(values, dtype=np.float64)
        if name == "choice":
            return rng.choice(numbers, count)
        first, second = numbers
        if name == "uniform":
            return rng.uniform(first, second, count)
        drawn = rng.standard_normal(count) * second
        if name == "lognormal":
            return np.asarray(first * np.exp(drawn))
        return np.asarray(np.maximum(first + drawn, MIN_SHARE_OF_MEAN * first))
    except (TypeError, ValueError) as error:
        raise BadSetting(f"{what} = {table!r} must be {_NAMES}") from error


def _spread(name: str, table: Mapping[str, Any]) -> float:
    spread = table.get("spread", 0.0)
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 <= spread < math.inf:
        raise BadSetting(f"{name}: spread = {spread!r} must be a share of the mean, 0 or more")
    return float(spread)


def _check_keys(name: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise UnknownName(f"key of {name}", str(key), known)
