"""The server's state as JSON and arrays, and back, without losing a bit.

Scalars go into JSON (Python writes the shortest text that reads back as the same float), arrays into named NumPy
arrays. Nothing is pickled: to read a state back, the caller gives a fresh `template` that has the right types.
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

LEDGER_COLUMNS = tuple(f.name for f in fields(Ledger) if f.name not in ("clients", "position"))
LATER_COLUMNS = ("loss_first",)
"""Those that checkpoints of before do not have: they begin anew, so that a run of before goes on."""

_FLOAT, _DICT = "$float", "$dict"


def to_jsonable(value: Any) -> Any:
    """`value` as strict JSON can hold it. Tuples become lists; a float that is not finite becomes `{"$float": "inf"}`.

    A dictionary that looks like such a mark is marked itself, so that every value comes back as it was.

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
    """The value that `to_jsonable` was given, with lists where it had tuples."""
    return loads(json.dumps(value))


def dumps(value: Any) -> str:
    """`value` as one line of strict JSON that `loads` reads back exactly."""
    return json.dumps(to_jsonable(value), allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """What `dumps` was given, with lists where it had tuples."""
    return json.loads(text, object_hook=_unmark)


def _unmark(plain: dict[str, Any]) -> Any:
    if set(plain) == {_FLOAT}:
        return float(plain[_FLOAT])
    return dict(plain[_DICT]) if set(plain) == {_DICT} else plain


def encode_state(state: ServerState) -> tuple[dict[str, Any], Arrays]:
    """The state as a JSON-able dictionary and named arrays."""
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
    """The state that `encode_state` was given. `template` is a fresh state of the same task and method; whatever
    does not fit it is a `RunFolderError` that says what differs."""
    _check_clients(blob["clients"], template.ledger.clients)
    fresh = template.ledger
    columns: dict[str, Any] = {
        name: _fitting(arrays, f"ledger.{name}", getattr(fresh, name))
        for name in LEDGER_COLUMNS
        if name not in LATER_COLUMNS or f"ledger.{name}" in arrays
    }
    saved = blob["slots"]
    slots = {slot: _decode_slot(slot, saved[slot], arrays, getattr(template, slot)) for slot in SLOTS if slot in saved}
    slots |= {slot: getattr(template, slot) for slot in SLOTS if slot not in saved}  # of a version that had none
    return ServerState(
        round=blob["round"],
        clock_s=from_jsonable(blob["clock_s"]),
        weights=_fitting(arrays, "weights", template.weights),
        ledger=replace(fresh, **columns),
        **slots,
    )


def _encode_slot(slot: str, state: Any) -> dict[str, Any] | None:
    if state is None:
        return None
    if not is_dataclass(state):
        raise TypeError(f"the state of slot {slot!r} must be a frozen dataclass or None, not {type(state).__name__}")
    found = {f.name: getattr(state, f.name) for f in fields(state) if f.init}
    apart = sorted(name for name, value in found.items() if isinstance(value, np.ndarray))
    within = {name: _encode_slot(f"{slot}.{name}", value) for name, value in found.items() if is_dataclass(value)}
    values = {name: to_jsonable(value) for name, value in found.items() if name not in apart and name not in within}
    blob = {"type": type(state).__qualname__, "fields": values, "arrays": apart}
    return {**blob, "within": within} if within else blob


def _slot_arrays(state: Any) -> Arrays:
    """The fields of a policy's state that are arrays, those of a state within it too."""
    if state is None or not is_dataclass(state):
        return {}
    values = {f.name: getattr(state, f.name) for f in fields(state) if f.init}
    within = {f"{at}.{name}": value for at, inner in values.items() for name, value in _slot_arrays(inner).items()}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)} | within


def _decode_slot(slot: str, saved: Mapping[str, Any] | None, arrays: Mapping[str, NDArray[Any]], fresh: Any) -> Any:
    expected = None if fresh is None else type(fresh).__qualname__
    found = None if saved is None else saved["type"]
    if found != expected:
        raise RunFolderError(f"the checkpoint's {slot} state is {found}, but this method makes {expected}")
    if saved is None:
        return None
    names = {f.name for f in fields(fresh) if f.init}
    within = saved.get("within", {})
    found_names = {*saved["fields"], *saved["arrays"], *within}
    if names != found_names:
        differing = ", ".join(sorted(names ^ found_names))
        raise RunFolderError(f"the checkpoint's {slot} state {found} differs from this version's in: {differing}")
    values = {name: _tuples(from_jsonable(value)) for name, value in saved["fields"].items()}
    for name in saved["arrays"]:
        if f"{slot}.{name}" not in arrays:
            raise RunFolderError(f"the checkpoint has no array {f'{slot}.{name}'!r}")
        values[name] = np.array(arrays[f"{slot}.{name}"])
    values |= {
        name: _decode_slot(f"{slot}.{name}", inner, arrays, getattr(fresh, name)) for name, inner in within.items()
    }
    return type(fresh)(**values)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _check_clients(saved: list[str], expected: tuple[str, ...]) -> None:
    if tuple(saved) == expected:
        return
    if len(saved) != len(expected):
        raise RunFolderError(f"the checkpoint has {len(saved)} clients, but the task has {len(expected)}")
    row, pair = next((row, pair) for row, pair in enumerate(zip(saved, expected, strict=True)) if pair[0] != pair[1])
    raise RunFolderError(f"client {row} of the checkpoint is {pair[0]!r}, but of the task {pair[1]!r}")


def _fitting(arrays: Mapping[str, NDArray[Any]], name: str, fresh: NDArray[Any]) -> NDArray[Any]:
    if name not in arrays:
        raise RunFolderError(f"the checkpoint has no array {name!r}")
    found = arrays[name]
    if (found.shape, found.dtype) != (fresh.shape, fresh.dtype):
        raise RunFolderError(
            f"the checkpoint's {name!r} is {found.dtype} {found.shape}, but this run needs {fresh.dtype} {fresh.shape}"
        )
    return found
