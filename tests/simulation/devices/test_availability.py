"""Availability: always on, or traces that repeat; every client gets one; nothing is guessed for a stranger."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.interfaces import Availability
from fedbalancer.simulation.devices import AlwaysOn, Traces


@pytest.fixture
def traces() -> Traces:
    intervals = {"ann": [[8, 10], [0, 3], [2, 5]], "bob": [[1, 2]], "eve": np.empty((0, 2))}
    return Traces({name: np.array(rows, dtype=float) for name, rows in intervals.items()}, period_s=10)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_always_on_never_pauses(start_s: float, busy_s: float) -> None:
    model: Availability = AlwaysOn()
    assert model.is_available("anybody", start_s)
    assert model.elapsed_s("anybody", start_s, busy_s) == busy_s


def test_intervals_are_kept_merged_and_read_only(traces: Traces) -> None:
    assert traces.intervals["ann"].tolist() == [[0, 5], [8, 10]]
    with pytest.raises(ValueError, match="read-only"):
        traces.intervals["ann"][0, 0] = 1


def test_the_callers_array_is_left_alone() -> None:
    own = np.array([[3.0, 4.0], [1.0, 2.0]])
    Traces({"ann": own}, period_s=10)
    assert own.tolist() == [[3, 4], [1, 2]]
    assert own.flags.writeable


def test_work_pauses_outside_the_intervals_and_goes_on_in_the_next_period(traces: Traces) -> None:
    model: Availability = traces
    assert [model.is_available("ann", at_s) for at_s in (0, 4.9, 5, 7.9, 8, 10, 15, 128)] == [
        True, True, False, False, True, True, False, True,
    ]  # fmt: skip
    assert model.elapsed_s("ann", 0, 5) == 5
    assert model.elapsed_s("ann", 0, 5.5) == 8.5
    assert model.elapsed_s("ann", 6, 1) == 3
    assert model.elapsed_s("ann", 9, 4) == 4  # the last interval touches the next period's first
    assert model.elapsed_s("bob", 1.5, 1) == 10
    assert model.elapsed_s("bob", 0, 0) == 0


def test_who_is_never_available_never_finishes(traces: Traces) -> None:
    assert not traces.is_available("eve", 1)
    assert traces.elapsed_s("eve", 1, 1) == math.inf
    assert traces.elapsed_s("eve", 1, 0) == 0


def test_a_client_without_a_trace_is_an_error(traces: Traces) -> None:
    with pytest.raises(BadData, match=r"client 'zoe' has no availability trace; assign\(\)"):
        traces.is_available("zoe", 0)
    with pytest.raises(BadData, match="client 'zoe'"):
        traces.elapsed_s("zoe", 0, 1)


def test_assigning_keeps_own_traces_and_never_hands_out_an_empty_one(traces: Traces) -> None:
    strangers = [str(number) for number in range(400)]
    given_to = traces.assign(["bob", "eve", *strangers], seed=1)
    assert set(given_to.intervals) == {"bob", "eve", *strangers}
    assert given_to.intervals["bob"].tolist() == [[1, 2]]
    assert not given_to.is_available("eve", 1)
    counts = Counter(len(given_to.intervals[name]) for name in strangers)
    assert set(counts) == {1, 2}
    assert counts[1] == pytest.approx(200, abs=45)


def test_assigning_depends_on_id_and_seed_only(traces: Traces) -> None:
    names = [str(number) for number in range(40)]
    forward, backward = traces.assign(names, seed=3), traces.assign([*names[::-1], "more"], seed=3)
    assert all(forward.intervals[name].tolist() == backward.intervals[name].tolist() for name in names)
    other = traces.assign(names, seed=4)
    assert any(forward.intervals[name].tolist() != other.intervals[name].tolist() for name in names)


def test_assigning_without_any_trace_is_an_error() -> None:
    with pytest.raises(BadData, match="no trace to assign"):
        Traces({"eve": np.empty((0, 2))}, period_s=10).assign(["ann"], seed=0)


def test_traces_travel(traces: Traces) -> None:
    copy = pickle.loads(pickle.dumps(traces.assign(["ann", "new"], seed=0)))
    assert copy.elapsed_s("ann", 9, 4) == 4
    assert copy.elapsed_s("new", 3, 7) == traces.assign(["new"], seed=0).elapsed_s("new", 3, 7)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 1], [5, 3]], r"client 'ann', interval 1, is \[5.0, 3.0\]"),
        ([[-1, 3]], "interval 0"),
        ([[0, 11]], "end <= 10 s, the period"),
        ([[0, math.nan]], "interval 0"),
        ([1, 2, 3], r"has shape \(3,\)"),
        ([[1, 2, 3]], r"has shape \(1, 3\)"),
        ([["a", "b"]], "must be rows of"),
    ],
)
def test_intervals_that_cannot_be_are_refused(rows: list[object], message: str) -> None:
    with pytest.raises(BadData, match=message):
        Traces({"ann": rows}, period_s=10)  # type: ignore[dict-item]


@pytest.mark.parametrize("period_s", [0, -1, math.inf, math.nan])
def test_a_period_must_be_a_duration(period_s: float) -> None:
    with pytest.raises(BadSetting, match="period_s is"):
        Traces({}, period_s=period_s)
