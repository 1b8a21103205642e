"""Imports the device and availability traces of FedScale and FLASH."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fedbalancer.core.errors import BadData, BadSetting, MissingData
from fedbalancer.core.randomness import client_keys, stream, tickets
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.fleet import Device, Interval
from fedbalancer.simulation.devices.models import CLASS_WEIGHTS, DOWNLOAD_KB_BYTES
from fedbalancer.simulation.devices.trace_files import clean, read_file

KBIT_MBIT = 1024 / 1e6
"""Mbit per kilobit of 1024 bits, the unit of FedScale's model sizes and speeds."""
KBYTE_MBIT = DOWNLOAD_KB_BYTES * 8 / 1e6
TRAINING_SHARE = 3.0
"""A training step in FedScale, as a multiple of the traced inference."""
_EVENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*([A-Za-z_0-9.%]+?)(?=\d{4}-\d\d-\d\d \d\d:|\s|\x00|$)")
_STATES = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
"""States of FLASH's messages that decide whether a phone is online; other messages are ignored."""
Event = tuple[datetime, str, bool]


class _PlainUnpickler(pickle.Unpickler):
    """Reads only numbers, text and built-in containers; anything that a pickle could run is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadData(f"it contains {module}.{name}; only numbers, text, lists and dictionaries are read")


def read_fedscale(
    devices: Path, availability: Path | str | None, count: int | None, model: str | None, flops: float | None, seed: int
) -> tuple[list[Device], float | None]:
    """Read FedScale's traces; `Fleet.from_fedscale` describes the arguments.

    Returns:
        The devices, and the period of their online intervals.
    """
    capacity = _load_pickle(devices)
    keys = list(capacity)
    traces: list[tuple[Any, Any]] = [] if availability is None else list(_load_pickle(Path(availability)).items())
    if count is not None:
        if not 1 <= count <= len(keys):
            raise BadSetting(f"count = {count} must be a number of devices from 1 to {len(keys)}, those of {devices}")
        chosen = np.sort(stream(seed, "fedscale devices").choice(len(keys), count, replace=False)).tolist()
    else:
        chosen = list(range(len(keys)))
    needed = {at % len(traces) for at in chosen} if traces else set()
    periods = {at: _finish_s(availability, *traces[at]) for at in needed}
    period_s = max(periods.values(), default=None)
    online = {at: _active(availability, traces[at], periods[at], period_s or 0.0) for at in needed}
    return [
        _capacity(devices, keys[at], capacity[keys[at]], model, flops, online.get(at % len(traces)) if traces else None)
        for at in chosen
    ], period_s


def read_flash(
    traces: Path | str, speeds: Path | str | None, models: Path | str | None, start: str | None, seed: int
) -> tuple[list[Device], float | None]:
    """Read FLASH's traces; `Fleet.from_flash` describes the arguments.

    Returns:
        The devices, and the period of their online intervals.
    """
    content = _load_json(traces)
    online, phones = _intervals(traces, content, start)
    usable, period_s, _ = clean(online, None)
    classes = _classes(Path(models), phones) if models is not None else {}
    networks = _networks(speeds) if speeds is not None else []
    drawn = tickets(seed, "flash network", 0, client_keys(online), len(networks)).tolist() if networks else []
    rows = {user: tuple(map(tuple, usable[user].tolist())) if user in usable else () for user in online}
    return [
        Device(
            id=user, online=intervals, device_class=classes.get(user, ""), **(networks[drawn[at]] if networks else {})
        )
        for at, (user, intervals) in enumerate(rows.items())
    ], period_s


def _load_pickle(path: Path) -> dict[Any, Any]:
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError as error:
        raise MissingData(f"there is no file {path}") from error
    except BadData as error:
        raise BadData(f"{path} is not read: {error}") from error
    except Exception as error:  # a broken pickle raises errors of many types
        raise BadData(f"{path} is not a valid pickle: {error}") from error
    if not isinstance(content, dict) or not content:
        raise BadData(f"{path} holds a {type(content).__name__}; it must be a dictionary of devices, not empty")
    return content


def _capacity(path: Path, key: Any, entry: Any, model: str | None, flops: float | None, online: Any) -> Device:
    try:
        computation_ms, kbit_s = float(entry["computation"]), float(entry["communication"])
        return Device(
            id=str(key), sample_s=TRAINING_SHARE * computation_ms / 1000, model=model, flops=flops, online=online,
            down_mbit_s=kbit_s * KBIT_MBIT, up_mbit_s=kbit_s * KBIT_MBIT,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{path}, id {key!r}: {_short(entry)} must have the numbers computation and communication"
        ) from error
    except BadData as error:
        raise BadData(f"{path}, id {key!r}: {error}") from error


def _finish_s(path: Any, key: Any, entry: Any) -> float:
    try:
        finish_s = float(entry["finish_time"])
        if not 0 < finish_s < np.inf:
            raise ValueError(finish_s)
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}, id {key!r}: finish_time must be a number of seconds above 0") from error
    return finish_s


def _active(path: Any, trace: tuple[Any, Any], finish_s: float, period_s: float) -> list[Interval]:
    """Return the active intervals of a trace, repeated until the period of the fleet ends."""
    key, entry = trace
    try:
        starts, ends = (np.sort(np.array(entry[name], dtype=np.float64)) for name in ("active", "inactive"))
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}, id {key!r}: active and inactive must be lists of seconds") from error
    places = np.searchsorted(ends, starts, side="right")
    until = np.append(ends, finish_s)[places]
    pairs = [(float(start), min(float(end), finish_s)) for start, end in zip(starts, until, strict=True)]
    shifts = np.arange(0, period_s, finish_s)
    repeated = [(start + shift, min(end + shift, period_s)) for shift in shifts.tolist() for start, end in pairs]
    return [(start, end) for start, end in repeated if 0 <= start < end]


def _load_json(path: Path | str) -> dict[str, Any]:
    try:
        content = json.loads(read_file(str(path)))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise BadData(f"{path} must be a JSON object of phones, not empty")
    return content


def _intervals(
    path: Path | str, content: Mapping[str, Any], start: str | None
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Return the intervals in which every user was ready, and the phone of every user as far as known."""
    if all(isinstance(entry, list) for entry in content.values()):
        from fedbalancer.simulation.devices.trace_files import load_intervals

        return load_intervals(path), {}
    events: dict[str, list[Event]] = {}
    phones: dict[str, str] = {}
    for key, entry in content.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("messages"), str):
            raise BadData(f"{path}, id {key!r}: {_short(entry)} must have messages, or be a list of [start_s, end_s]")
        user = str(entry.get("guid") or entry.get("user_id") or key)
        events[user] = list(_events(entry["messages"]))
        if isinstance(entry.get("model"), str):
            phones[user] = entry["model"]
    zero = _second_zero(path, events, start)
    needed = {what for each in events.values() for _, what, _ in each}
    if "charging" not in needed:
        raise BadData(f"{path} has no battery_charged_on message, so no phone is ever online")
    return {user: _ready(each, needed, zero) for user, each in events.items()}, phones


def _events(messages: str) -> Iterator[Event]:
    for time_text, state in _EVENT.findall(messages):
        decided = _STATES.get(state.lower())
        if decided is None:
            continue
        try:
            yield datetime.fromisoformat(time_text), *decided
        except ValueError:  # such as month 13
            continue


def _second_zero(path: Path | str, events: Mapping[str, list[Event]], start: str | None) -> datetime:
    """Return midnight of the first day; some phones have clocks that are years behind, so 1% may be earlier."""
    if start is not None:
        try:
            return datetime.fromisoformat(start)
        except (TypeError, ValueError) as error:
            raise BadSetting(f"start = {start!r} must be a date such as 2020-01-02") from error
    times = sorted(time for each in events.values() for time, _, _ in each)
    if not times:
        raise BadData(f"{path} has no messages such as '2020-01-02 00:00:00<tab>battery_charged_on'")
    return times[len(times) // 100].replace(hour=0, minute=0, second=0)


def _ready(events: list[Event], needed: set[str], zero: datetime) -> FloatArray:
    """Return the intervals in which all needed states hold."""
    state = dict.fromkeys(needed, False)
    rows: list[Interval] = []
    since: float | None = None
    for time, what, holds in events:
        state[what] = holds
        at_s = (time - zero) / timedelta(seconds=1)
        if all(state.values()):
            since = at_s if since is None else since
        elif since is not None:
            rows.append((since, at_s))
            since = None
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _classes(folder: Path, phones: Mapping[str, str]) -> dict[str, str]:
    """Return slow, mid or fast for every phone that a benchmark knows: the class of the nearest score."""
    names, scores, supported = (
        json.loads(read_file(str(folder / f"{name}.json")))
        for name in ("real2benchmark", "benchmark2score", "supported_devices")
    )
    try:
        steps = [float(scores[name]) for name in supported]
        known = {phone: scores[names[phone]] for phone in set(phones.values()) if names.get(phone) in scores}
        nearest = {phone: int(np.argmin([abs(score - step) for step in steps])) for phone, score in known.items()}
        return {user: tuple(CLASS_WEIGHTS)[nearest[phone]] for user, phone in phones.items() if phone in nearest}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"the benchmark files in {folder} do not fit together: {error!r}") from error


def _networks(path: Path | str) -> list[dict[str, float]]:
    """Return the speeds of the users in FLASH's file, from kB/s to Mbit/s, in the order of their ids."""
    fields = {
        "down_mbit_s": "down_u",
        "down_std_mbit_s": "down_sigma",
        "up_mbit_s": "up_u",
        "up_std_mbit_s": "up_sigma",
    }
    content = _load_json(path)
    try:
        return [
            {name: float(content[user][key]) * KBYTE_MBIT for name, key in fields.items()} for user in sorted(content)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path}: every user must have the numbers {', '.join(fields.values())} in kB/s") from error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
