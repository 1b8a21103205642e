"""Intervals on a repeating clock, of one device and of many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.simulation.devices.intervals import Cycle, IntervalColumns, merge_intervals

PERIOD = 12
overlapping = st.lists(st.tuples(st.integers(0, PERIOD), st.integers(0, PERIOD)).map(sorted), max_size=8)
scattered = st.sets(st.integers(0, PERIOD - 1)).map(lambda seconds: [[second, second + 1] for second in seconds])
rows = st.one_of(overlapping, scattered)  # random pairs mostly melt into one interval; single seconds leave many


def cycle_of(pairs: list[list[int]], period_s: float = PERIOD) -> Cycle:
    return Cycle.of(merge_intervals(np.array(pairs, dtype=float).reshape(-1, 2)), period_s)


def seconds_of(pairs: list[list[int]]) -> set[int]:
    return {second for start, end in pairs for second in range(start, end)}


def counted_elapsed(on: set[int], start: int, busy: int) -> float:
    """Step through the clock one second at a time."""
    if busy == 0:
        return 0
    if not on:
        return math.inf
    now = start
    while busy:
        busy -= now % PERIOD in on
        now += 1
    return now - start


@given(rows)
def test_merging_keeps_the_seconds_and_leaves_gaps(pairs: list[list[int]]) -> None:
    result = merge_intervals(np.array(pairs, dtype=float).reshape(-1, 2))
    assert seconds_of(result.astype(int).tolist()) == seconds_of(pairs)
    assert (result[:, 0] < result[:, 1]).all()
    assert (result[1:, 0] > result[:-1, 1]).all()


@given(rows, st.integers(-50, 200))
def test_is_on_matches_the_count_and_ends_are_open(pairs: list[list[int]], at: int) -> None:
    cycle, on = cycle_of(pairs), seconds_of(pairs)
    assert cycle.is_on(at) == cycle.is_on(at + 0.5) == (at % PERIOD in on)


@given(rows, st.integers(0, 100), st.integers(0, 150))
def test_elapsed_is_exactly_the_count(pairs: list[list[int]], start: int, busy: int) -> None:
    assert cycle_of(pairs).elapsed_s(start, busy) == counted_elapsed(seconds_of(pairs), start, busy)


@given(rows.filter(seconds_of), st.integers(0, 40), st.integers(1, 60), st.integers(1, 10**9))
def test_whole_periods_of_work_take_whole_periods(pairs: list[list[int]], start: int, busy: int, periods: int) -> None:
    cycle, per_period = cycle_of(pairs), len(seconds_of(pairs))
    longer = cycle.elapsed_s(start, busy + periods * per_period)
    assert longer == cycle.elapsed_s(start, busy) + periods * PERIOD


@given(rows.filter(seconds_of), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_work_done_in_two_parts_takes_as_long(pairs: list[list[int]], start: float, one: float, two: float) -> None:
    """Phases of a round are chained: the second starts where the first ends. Between the parts the phone may pause, so
    a part that ends exactly with an interval only bounds the sum from below."""
    cycle = cycle_of(pairs)
    first = cycle.elapsed_s(start, one)
    parts, whole = first + cycle.elapsed_s(start + first, two), cycle.elapsed_s(start, one + two)
    on_edge = any(abs((start + first) % PERIOD - edge) < 1e-6 for pair in pairs for edge in (*pair, 0, PERIOD))
    ends_on_edge = any(abs((start + whole) % PERIOD - edge) < 1e-6 for pair in pairs for edge in (*pair, 0, PERIOD))
    if not (on_edge or ends_on_edge):
        assert parts == pytest.approx(whole, abs=1e-6)


@given(rows.filter(seconds_of), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_elapsed_never_decreases_and_covers_the_work(pairs: list[list[int]], start: float, a: float, b: float) -> None:
    cycle, (less, more) = cycle_of(pairs), sorted((a, b))
    assert cycle.elapsed_s(start, more) >= cycle.elapsed_s(start, less) - 1e-6
    assert cycle.elapsed_s(start, more) >= more


def test_always_on_costs_no_pause() -> None:
    cycle = cycle_of([[0, PERIOD]])
    assert cycle.elapsed_s(13.25, 1e9) == pytest.approx(1e9, rel=1e-15)


def test_a_billion_periods_take_no_longer_to_find() -> None:
    assert cycle_of([[3, 4]]).elapsed_s(0, 1e9) == 4 + (1e9 - 1) * PERIOD


def test_infinite_work_never_ends() -> None:
    assert cycle_of([[3, 4]]).elapsed_s(0, math.inf) == math.inf


pairs = st.lists(st.tuples(st.integers(0, PERIOD), st.integers(0, PERIOD)).map(sorted), max_size=5)
some_traces = st.lists(pairs.map(lambda rows: merge_intervals(np.array(rows, dtype=float).reshape(-1, 2))), max_size=4)


def given_out(traces: list[np.ndarray], owners: list[int]) -> dict[str, np.ndarray]:
    """Clients c0, c1, ... who have these traces; a trace may have no owner."""
    return {f"c{number}": traces[owner % len(traces)] for number, owner in enumerate(owners)} if traces else {}


@given(some_traces, st.lists(st.integers(0, 9), max_size=8), st.integers(0, PERIOD - 1))
def test_every_client_has_what_it_was_given(traces: list[np.ndarray], owners: list[int], phase: int) -> None:
    intervals = given_out(traces, owners)
    columns = IntervalColumns.of(intervals)
    assert list(columns) == list(intervals)
    assert {name: rows.tolist() for name, rows in columns.items()} == {n: r.tolist() for n, r in intervals.items()}
    on = columns.are_on(phase + 0.5)[columns.trace].tolist() if len(columns) else []
    assert on == [Cycle.of(rows, PERIOD).is_on(phase + 0.5) for rows in intervals.values()]


def test_a_shared_trace_is_held_once() -> None:
    trace = np.array([[0.0, 5.0], [8.0, 9.0]])
    columns = IntervalColumns.of({f"c{number:04d}": trace for number in range(1000)})
    assert len(columns.rows) == 2
    assert columns.trace.nbytes == 4000


def test_intervals_begin_closed_and_end_open() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]])})
    assert [columns.are_on(phase_s)[0] for phase_s in (1.9, 2.0, 4.9, 5.0)] == [False, True, True, False]


def test_other_clients_may_be_given_the_same_traces() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]]), "bob": np.array([[1.0, 9.0]])})
    others = columns.assign_to(("cid", "dan", "eve"), np.array([1, 1, 0], dtype=np.int32))
    assert [others[name].tolist() for name in others] == [[[1, 9]], [[1, 9]], [[2, 5]]]
    assert np.shares_memory(others.rows, columns.rows)


def test_what_is_handed_out_cannot_be_changed() -> None:
    columns = IntervalColumns.of({"ann": np.array([[2.0, 5.0]])})
    with pytest.raises(ValueError, match="read-only"):
        columns["ann"][0, 0] = 1
