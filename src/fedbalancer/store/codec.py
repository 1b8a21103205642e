"""Exact conversion of the server's state to JSON and arrays, and back.

Scalars are stored as JSON (Python writes the shortest text that reads back as the same float), arrays as named NumPy
arrays. Nothing is pickled: the types of a restored state come from a new `template` state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.types import Ledger, ServerState

Arrays = dict[str, NDArray[Any]]

SLOTS = tuple(f.name for f in fields(ServerState) if f.name not in ("round", "clock_s", "weights", "ledger"))
"""The fields of `ServerState` that belong to policies."""

LEDGER_COLUMNS = tuple(f.name for f in fields(Ledger) if f.name not in ("clients", "position", "tags"))

_FLOAT, _DICT = "$float", "$dict"


def to_jsonable(value: Any) -> Any:
    """Convert a value to strict JSON values.

    Tuples become lists, and a float that is not finite becomes `{"$float": "inf"}`. A dictionary that looks like such a
    mark is marked itself, so that every value can be restored.

    >>> to_jsonable({"deadline_s": math.inf, "ratios": (0.5, 1)})
    {'deadline_s': {'$float': 'inf'}, 'ratios': [0.5, 1]}
    >>> from_jsonable(to_jsonable({"$float": math.nan}))
    {'$float': nan}
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, np.int64 | np.bool_):
        return value.item()
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        plain = {key: to_jsonable(item) for key, item in value.items()}
        return {_DICT: [list(item) for item in plain.items()]} if set(plain) in ({_FLOAT}, {_DICT}) else plain
    raise TypeError(f"a saved state holds numbers, strings, None, tuples and dicts with text keys, not {value!r}")


def from_jsonable(value: Any) -> Any:
    """Return the value that `to_jsonable` converted, with lists instead of tuples."""
    return loads(json.dumps(value))


def dumps(value: Any) -> str:
    """Return a value as one line of strict JSON, which `loads` restores exactly."""
    return json.dumps(to_jsonable(value), allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """Return the value that `dumps` wrote, with lists instead of tuples."""
    return json.loads(text, object_hook=_unmark)


def _unmark(plain: dict[str, Any]) -> Any:
    if set(plain) == {_FLOAT}:
        return float(plain[_FLOAT])
    return dict(plain[_DICT]) if set(plain) == {_DICT} else plain


def encode_state(state: ServerState) -> tuple[dict[str, Any], Arrays]:
    """Convert a state to a JSON dictionary and named arrays."""
    blob = {
        "round": state.round,
        "clock_s": to_jsonable(state.clock_s),
        "clients": list(state.ledger.clients),
        "slots": {slot: _encode_slot(slot, getattr(state, slot)) for slot in SLOTS},
    }
    arrays = {"weights": state.weights} | {f"ledger.{name}": getattr(state.ledger, name) for name in LEDGER_COLUMNS}
    for slot in SLOTS:
        arrays |= {f"{slot}.{name}": value for name, value in _slot_arrays(getattr(state, slot)).items()}
    return blob, arrays


def decode_state(blob: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], template: ServerState) -> ServerState:
    """Restore a state that `encode_state` converted.

    Args:
        blob: The JSON dictionary.
        arrays: The named arrays.
        template: A new state of the same task and method, which has the types and shapes.

    Raises:
        RunFolderError: If the saved state does not fit the template.
    """
    _check_clients(blob["clients"], template.ledger.clients)
    ledger = template.ledger
    columns: dict[str, Any] = {
        name: _get_array(arrays, f"ledger.{name}", getattr(ledger, name)) for name in LEDGER_COLUMNS
    }
    saved = blob["slots"]
    if missing := [slot for slot in SLOTS if slot not in saved]:
        raise RunFolderError(f"the checkpoint has no state of {', '.join(missing)}; start again with --overwrite")
    slots = {slot: _decode_slot(slot, saved[slot], arrays, getattr(template, slot)) for slot in SLOTS}
    return ServerState(
        round=blob["round"],
        clock_s=from_jsonable(blob["clock_s"]),
        weights=_get_array(arrays, "weights", template.weights),
        ledger=replace(ledger, **columns),
        **slots,
    )


def _encode_slot(slot: str, state: Any) -> dict[str, Any] | None:
    if state is None:
        return None
    if not is_dataclass(state):
        raise TypeError(f"the state of slot {slot!r} must be a frozen dataclass or None, not {type(state).__name__}")
    values = {f.name: getattr(state, f.name) for f in fields(state) if f.init}
    arrays = sorted(name for name, value in values.items() if isinstance(value, np.ndarray))
    within = {name: _encode_slot(f"{slot}.{name}", value) for name, value in values.items() if is_dataclass(value)}
    plain = {name: to_jsonable(value) for name, value in values.items() if name not in arrays and name not in within}
    blob = {"type": type(state).__qualname__, "fields": plain, "arrays": arrays}
    return {**blob, "within": within} if within else blob


def _slot_arrays(state: Any) -> Arrays:
    """Return the array fields of a policy's state, including those of nested states."""
    if state is None or not is_dataclass(state):
        return {}
    values = {f.name: getattr(state, f.name) for f in fields(state) if f.init}
    within = {
        f"{field}.{name}": value for field, inner in values.items() for name, value in _slot_arrays(inner).items()
    }
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)} | within


def _decode_slot(slot: str, saved: Mapping[str, Any] | None, arrays: Mapping[str, NDArray[Any]], fresh: Any) -> Any:
    expected = None if fresh is None else type(fresh).__qualname__
    kind = None if saved is None else saved["type"]
    if kind != expected:
        raise RunFolderError(f"the checkpoint's {slot} state is {kind}, but this method makes {expected}")
    if saved is None:
        return None
    names = {f.name for f in fields(fresh) if f.init}
    within = saved.get("within", {})
    saved_names = {*saved["fields"], *saved["arrays"], *within}
    if names != saved_names:
        differing = ", ".join(sorted(names ^ saved_names))
        raise RunFolderError(f"the checkpoint's {slot} state {kind} differs from this version's in: {differing}")
    values = {name: _to_tuples(from_jsonable(value)) for name, value in saved["fields"].items()}
    for name in saved["arrays"]:
        if f"{slot}.{name}" not in arrays:
            raise RunFolderError(f"the checkpoint has no array {f'{slot}.{name}'!r}")
        values[name] = np.array(arrays[f"{slot}.{name}"])
    values |= {
        name: _decode_slot(f"{slot}.{name}", inner, arrays, getattr(fresh, name)) for name, inner in within.items()
    }
    return type(fresh)(**values)


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list) else value


def _check_clients(saved: list[str], expected: tuple[str, ...]) -> None:
    if tuple(saved) == expected:
        return
    if len(saved) != len(expected):
        raise RunFolderError(f"the checkpoint has {len(saved)} clients, but the task has {len(expected)}")
    row, pair = next((row, pair) for row, pair in enumerate(zip(saved, expected, strict=True)) if pair[0] != pair[1])
    raise RunFolderError(f"client {row} of the checkpoint is {pair[0]!r}, but of the task {pair[1]!r}")


def _get_array(arrays: Mapping[str, NDArray[Any]], name: str, fresh: NDArray[Any]) -> NDArray[Any]:
    """Return a saved array, which must have the shape and type of the new one."""
    if name not in arrays:
        raise RunFolderError(f"the checkpoint has no array {name!r}")
    saved = arrays[name]
    if (saved.shape, saved.dtype) != (fresh.shape, fresh.dtype):
        raise RunFolderError(
            f"the checkpoint's {name!r} is {saved.dtype} {saved.shape}, but this run needs {fresh.dtype} {fresh.shape}"
        )
    return saved
