"""A state comes back bit for bit, and one that does not fit is refused with what differs."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import RunFolderError
from fedbalancer.core.types import Ledger, ServerState
from fedbalancer.store.codec import LEDGER_COLUMNS, decode_state, dumps, encode_state, from_jsonable, loads, to_jsonable


@dataclass(frozen=True)
class Slot:
    first: Any
    second: Any = ()


@dataclass(frozen=True)
class OtherSlot:
    first: Any
    third: Any = 0


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits, where any NaN is as good as another."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


scalars = st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.text()
plain = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)
keys = st.text() | st.sampled_from(["$float", "$dict"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def make_state(clients: tuple[str, ...] = ("ann", "bob"), weights: int = 3, **slots: Any) -> ServerState:
    count = len(clients)
    ledger = Ledger.start(clients, np.arange(count) + 1, np.ones(count) / 3, np.full((count, 10), 0.1))
    return ServerState(0, 0.0, np.zeros(weights, dtype=np.float32), ledger, **slots)


def through_disk(state: ServerState, template: ServerState) -> ServerState:
    blob, arrays = encode_state(state)
    return decode_state(json.loads(json.dumps(blob, allow_nan=False)), arrays, template)


@given(documents)
def test_any_document_comes_back(value: Any) -> None:
    text = dumps(value)
    assert same(loads(text), value)
    assert same(from_jsonable(to_jsonable(value)), value)
    assert "\n" not in text


@given(first=plain, second=plain, clock_s=st.floats(), round=st.integers(0, 10**12))
@settings(max_examples=150)
def test_slot_states_and_scalars_come_back(first: Any, second: Any, clock_s: float, round: int) -> None:
    state = replace(make_state(pace=Slot(first, second)), clock_s=clock_s, round=round)
    back = through_disk(state, make_state(pace=Slot(0)))
    assert isinstance(back.pace, Slot)
    assert same((back.round, back.clock_s, back.pace.first, back.pace.second), (round, clock_s, first, second))
    assert back.threshold is None


def test_arrays_come_back_bit_for_bit() -> None:
    weights = np.array([0x7FC00001, 0x80000000, 0x00000001], dtype=np.uint32).view(np.float32)  # odd NaN, -0, subnormal
    fresh = make_state()
    rounds = np.array([2**31 - 1, -1], dtype=np.int32)
    ledger = replace(fresh.ledger, over_sumsq=np.array([math.nan, math.inf]), last_round=rounds)
    back = through_disk(replace(fresh, weights=weights, ledger=ledger), fresh)
    assert back.weights.tobytes() == weights.tobytes()
    for name in LEDGER_COLUMNS:
        assert getattr(back.ledger, name).tobytes() == getattr(ledger, name).tobytes(), name
    assert (back.ledger.clients, back.ledger.position) == (("ann", "bob"), {"ann": 0, "bob": 1})


def test_no_clients_and_no_weights_are_fine() -> None:
    back = through_disk(make_state((), 0), make_state((), 0))
    assert back.ledger.clients == ()
    assert back.weights.shape == (0,)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (make_state(("ann",), pace=Slot(0)), "has 2 clients, but the task has 1"),
        (make_state(("ann", "cid"), pace=Slot(0)), "client 1 of the checkpoint is 'bob', but of the task 'cid'"),
        (make_state(("bob", "ann"), pace=Slot(0)), "client 0"),
        (make_state(weights=4, pace=Slot(0)), r"'weights' is float32 \(3,\), but this run needs float32 \(4,\)"),
        (make_state(), "pace state is Slot, but this method makes None"),
        (make_state(pace=OtherSlot(0)), "pace state is Slot, but this method makes OtherSlot"),
        (make_state(pace=Slot(0), deadline=Slot(0)), "deadline state is None, but this method makes Slot"),
    ],
)
def test_what_does_not_fit_is_named(template: ServerState, message: str) -> None:
    with pytest.raises(RunFolderError, match=message):
        through_disk(make_state(pace=Slot(1.5)), template)


def test_changed_fields_of_a_slot_are_named() -> None:
    blob, arrays = encode_state(make_state(pace=Slot(1)))
    blob["slots"]["pace"]["fields"]["forgotten"] = blob["slots"]["pace"]["fields"].pop("second")
    with pytest.raises(RunFolderError, match="pace state Slot differs from this version's in: forgotten, second"):
        decode_state(blob, arrays, make_state(pace=Slot(0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_arrays_of_a_slot_come_back_whatever_their_size(dtype: type) -> None:
    moments = np.array([0, 1, 3]).astype(dtype)
    back = through_disk(make_state(aggregate=Slot(moments, 0.5)), make_state(aggregate=Slot(np.zeros(0, dtype))))
    assert (back.aggregate.first.dtype, back.aggregate.first.tolist()) == (moments.dtype, moments.tolist())
    assert back.aggregate.second == 0.5


def test_missing_array_of_a_slot_is_named() -> None:
    blob, arrays = encode_state(make_state(aggregate=Slot(np.zeros(2))))
    del arrays["aggregate.first"]
    with pytest.raises(RunFolderError, match=r"no array 'aggregate\.first'"):
        decode_state(blob, arrays, make_state(aggregate=Slot(np.zeros(0))))


def test_missing_array_is_named() -> None:
    blob, arrays = encode_state(make_state())
    del arrays["ledger.size"]
    with pytest.raises(RunFolderError, match=r"no array 'ledger\.size'"):
        decode_state(blob, arrays, make_state())


@pytest.mark.parametrize("value", [{1, 2}, object(), np.float32(0.1), (np.zeros(2),), {1: "a"}, b"raw", 1j])
def test_what_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a saved state holds"):
        encode_state(make_state(pace=Slot(value)))


def test_slot_state_must_be_a_dataclass() -> None:
    with pytest.raises(TypeError, match="slot 'pace' must be a frozen dataclass or None, not float"):
        encode_state(make_state(pace=0.5))
