"""Equality of nested values."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.testing.checked import same

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner), max_leaves=12
)


@dataclass(frozen=True)
class Row:
    name: str
    values: Any
    cache: Any = field(default=None, compare=False)


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("unset", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


@given(VALUES)
def test_a_deep_copy_is_the_same(value: Any) -> None:
    assert same(value, copy.deepcopy(value))
    assert same(Plain(value), copy.deepcopy(Plain(value)))


@given(st.lists(st.floats(), min_size=1, max_size=8), st.data())
def test_one_changed_number_is_seen(values: list[float], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(values) - 1))
    changed = np.array(values)
    changed[row] = 0.0 if math.isnan(changed[row]) or changed[row] != 0 else 1.0
    assert not same(Row("a", np.array(values)), Row("a", changed))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (Row("a", 1, cache=1), Row("a", 1, cache=2), True),
        (Row("a", 1), Row("b", 1), False),
        (Plain([1, math.nan]), Plain([1, math.nan]), True),
        (Plain(1), Plain(2), False),
        (Slotted(1), Slotted(1), True),
        (Slotted(1), Slotted(2), False),
        (np.zeros(2), np.zeros(3), False),
        (np.zeros(2), np.zeros(2, dtype=np.float32), False),
        (np.float64(0.5), 0.5, True),
        ([1, 2], (1, 2), False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        (abs, max, False),
        (lambda: 1, lambda: 1, False),
        (Plain, Slotted, False),
    ],
)
def test_what_counts(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
