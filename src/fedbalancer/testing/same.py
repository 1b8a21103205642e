"""Whether two values are the same through and through: arrays, dataclasses, containers, not-a-numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from types import FunctionType
from typing import Any

import numpy as np


def same(one: Any, other: Any) -> bool:
    """Equality that goes into arrays and attributes. A dataclass field with `compare=False` and a `cached_property`
    are caches and do not count.

    >>> same({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])}), same([1, 2], (1, 2))
    (True, False)
    """
    if _is_number(one) and _is_number(other):
        return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - only a nan differs from itself
    if one is other or type(one) is not type(other) or isinstance(one, FunctionType | type):
        return one is other
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other)
    parts = _parts(one)
    if parts is None:
        return bool(one == other)
    others = _parts(other) or {}
    return list(parts) == list(others) and all(same(parts[name], others[name]) for name in parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | np.number | np.bool_)


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """What to compare one by one; None for a value that has an equality of its own."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    kind: Any = type(value)
    return None if _has_equality(kind) and not is_dataclass(value) else _attributes(value)


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, its caches left out."""
    kind: Any = type(value)
    slots, caches = _class_names(kind)
    names = {*getattr(value, "__dict__", ()), *slots} - caches
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


@cache
def _has_equality(kind: type) -> bool:
    return any("__eq__" in vars(base) for base in kind.__mro__[:-1])


@cache
def _class_names(kind: type) -> tuple[set[str], set[str]]:
    """Names of the slots and of the caches of a class."""
    slots = {name for base in kind.__mro__ for name in _slots(base)}
    caches = {name for base in kind.__mro__ for name, found in vars(base).items() if isinstance(found, cached_property)}
    if is_dataclass(kind):
        caches |= {field.name for field in fields(kind) if not field.compare}
    return slots, caches


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
