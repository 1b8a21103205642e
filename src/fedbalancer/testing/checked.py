"""A policy under test, and equality of nested values."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from types import FunctionType
from typing import Any, NoReturn

import numpy as np


def is_real(value: Any) -> bool:
    """Whether a value is a number, infinity included, but neither a bool nor NaN."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and not np.isnan(value)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, but not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_indices(value: Any) -> bool:
    """Whether a value is a 1-d array of integers."""
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"


def kind(value: Any) -> str:
    """Return a description of a value's type."""
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, including arrays, attributes and NaN.

    Dataclass fields with `compare=False` and cached properties are ignored.

    Args:
        one: First value.
        other: Second value.

    Example:
        >>> same({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])}), same([1, 2], (1, 2))
        (True, False)
    """
    if _is_number(one) and _is_number(other):
        return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - only NaN differs from itself
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
    """Return what to compare piece by piece; None for a value with its own equality."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    kind: Any = type(value)
    return None if _has_equality(kind) and not is_dataclass(value) else _attributes(value)


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes without caches."""
    kind: Any = type(value)
    slots, caches = _class_names(kind)
    names = {*getattr(value, "__dict__", ()), *slots} - caches
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


@cache
def _has_equality(kind: type) -> bool:
    return any("__eq__" in vars(base) for base in kind.__mro__[:-1])


@cache
def _class_names(kind: type) -> tuple[set[str], set[str]]:
    """Return the names of a class's slots and caches."""
    slots = {name for base in kind.__mro__ for name in _slots(base)}
    caches = {name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, cached_property)}
    if is_dataclass(kind):
        caches |= {field.name for field in fields(kind) if not field.compare}
    return slots, caches


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class PolicyError(AssertionError):
    """A policy breaks the contract of its slot."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A policy under test. Every call is repeated on copies, and arguments and global state are watched.

    Args:
        policy: The policy.
        twins: Its deep copy and its pickled copy, which must behave the same.
    """

    policy: Any
    twins: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, policy: Any) -> Checked:
        """Copy the policy. Raises `PolicyError` if it cannot be copied."""
        bare = cls(policy)
        try:
            copied = copy.deepcopy(policy)
        except Exception as error:
            bare.broken("cannot be deep-copied", error)
        bare.require(same(policy, copied), "is not equal to its deep copy")
        try:
            pickled = pickle.loads(pickle.dumps(policy))
        except Exception as error:
            bare.broken("cannot be pickled, so other processes cannot use it", error)
        return replace(bare, twins=(("deep", copied), ("pickled", pickled)))

    @property
    def name(self) -> str:
        """Name of the policy's class."""
        return type(self.policy).__name__

    def broken(self, sentence: str, cause: Exception | None = None) -> NoReturn:
        """Raise a `PolicyError` about the policy."""
        because = "" if cause is None else f": {type(cause).__name__}: {cause}"
        raise PolicyError(f"{self.name} {sentence}{because}") from cause

    def require(self, promise: bool, sentence: str) -> None:
        """Raise a `PolicyError` unless a condition holds."""
        if not promise:
            self.broken(sentence)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the policy, and check that it is a pure function of its arguments."""
        originals, itself, drawn = copy.deepcopy(arguments), copy.deepcopy(self.policy), _global_draws()
        result = self._run(self.policy, method, arguments)
        names = list(inspect.signature(getattr(self.policy, method)).parameters)
        for row, (now, before) in enumerate(zip(arguments, originals, strict=True)):
            if not isinstance(now, np.random.Generator) and not same(now, before):
                argument = names[row] if row < len(names) else str(row)
                self.broken(f"changed its argument {argument} in {method}(); a policy must not change its arguments")
        if not same(self.policy, itself):
            self.broken(f"changed itself in {method}(); store what it remembers in the state that observe() returns")
        if drawn != _global_draws():
            self.broken(f"draws from a global random generator in {method}(); use fedbalancer.core.randomness.stream")
        for kind, twin in (("", self.policy), *self.twins):
            if not same(result, self._run(twin, method, copy.deepcopy(originals))):
                whose = f"its {kind} copy returns another result" if kind else "the second call returns another result"
                self.broken(f"is not deterministic: {whose} for the same arguments of {method}()")
        return result

    def _run(self, policy: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(policy, method)(*arguments)
        except Exception as error:
            self.broken(f"raised an error in {method}()", error)


def _global_draws() -> tuple[Any, ...]:
    """Return the state of the global random generators."""
    name, words, *rest = np.random.get_state()  # noqa: NPY002 - to see whether the policy uses it
    return random.getstate(), name, np.asarray(words).tobytes(), *rest
