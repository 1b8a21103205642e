"""Intervals as columns: a mapping like any other, in which one trace may belong to many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.simulation.devices.columns import IntervalColumns
from fedbalancer.simulation.devices.intervals import Cycle, merged

PERIOD = 12
pairs = st.lists(st.tuples(st.integers(0, PERIOD), st.integers(0, PERIOD)).map(sorted), max_size=5)
some_traces = st.lists(pairs.map(lambda rows: merged(np.array(rows, dtype=float).reshape(-1, 2))), max_size=4)


def given_out(traces: list[np.ndarray], owners: list[int]) -> dict[str, np.ndarray]:
    """Clients c0, c1, ... who have these traces; a trace may have no owner."""
    return {f"c{number}": traces[owner % len(traces)] for number, owner in enumerate(owners)} if traces else {}


@given(some_traces, st.lists(st.integers(0, 9), max_size=8), st.integers(0, PERIOD - 1))
def test_every_client_has_what_it_was_given(traces: list[np.ndarray], owners: list[int], phase: int) -> None:
    intervals = given_out(traces, owners)
    columns = IntervalColumns.of(intervals)
    assert list(columns) == list(intervals)
    assert {name: rows.tolist() for name, rows in columns.items()} == {n: r.tolist() for n, r in intervals.items()}
    on = columns.on(phase + 0.5)[columns.trace].tolist() if len(columns) else []
    assert on == [Cycle.of(rows, PERIOD).is_on(phase + 0.5) for rows in intervals.values()]


def test_a_shared_trace_is_held_once() -> None:
    trace = np.array([[0.0, 5.0], [8.0, 9.0]])
    columns = IntervalColumns.of({f"c{number:04d}": trace for number in range(1000)})
    assert len(columns.rows) == 2
    assert columns.trace.nbytes == 4000


def test_intervals_begin_closed_and_end_open() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]])})
    assert [columns.on(phase_s)[0] for phase_s in (1.9, 2.0, 4.9, 5.0)] == [False, True, True, False]


def test_other_clients_may_be_given_the_same_traces() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]]), "bob": np.array([[1.0, 9.0]])})
    others = columns.given_to(("cid", "dan", "eve"), np.array([1, 1, 0], dtype=np.int32))
    assert [others[name].tolist() for name in others] == [[[1, 9]], [[1, 9]], [[2, 5]]]
    assert np.shares_memory(others.rows, columns.rows)


def test_what_is_handed_out_cannot_be_changed() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]])})
    with pytest.raises(ValueError, match="read-only"):
        columns["ann"][0, 0] = 1
