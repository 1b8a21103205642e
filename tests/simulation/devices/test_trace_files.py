"""Trace files: what is read, what is cleaned away and counted, and what is refused with its place."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting, MissingData, UnknownName
from fedbalancer.simulation.devices import CleaningReport, read_traces
from fedbalancer.simulation.devices.trace_files import DAY_S, YEAR_S, Cycle, IntervalColumns, merge_intervals

SHARED = Path(__file__).parents[4] / "shared" / "data"
ARCHIVE = Path(os.environ.get("FEDBALANCER_DATA", SHARED)) / "devices.zip"


def written(folder: Path, content: Any) -> Path:
    path = folder / "traces.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_intervals_come_back_in_whole_days(tmp_path: Path) -> None:
    traces = read_traces(written(tmp_path, {"ann": [[10, 20], [30.5, 40]], "bob": [[DAY_S, DAY_S + 60]]}))
    assert traces.period_s == 2 * DAY_S
    assert traces.intervals["ann"].tolist() == [[10, 20], [30.5, 40]]
    assert traces.is_available("bob", 3 * DAY_S + 59)


def test_everything_unusable_is_dropped_and_counted(tmp_path: Path) -> None:
    content = {
        "ann": [[5, 9], [1, 3], [3, 4], [6, 7], [8, 8], [9, 2]],
        "bob": [[float("nan"), 5], [5, float("inf")]],
        "cleo": [[-3 * YEAR_S, 100], [100, 2 * YEAR_S], [-50, -20], [-50, 20], [DAY_S - 1, DAY_S + 1]],
        "dan": [],
        "eve": [[10**400, 10**401]],
    }
    traces = read_traces(written(tmp_path, content), period_s=DAY_S)
    assert {name: rows.tolist() for name, rows in traces.intervals.items()} == {
        "ann": [[1, 4], [5, 9]],
        "cleo": [[0, 20], [DAY_S - 1, DAY_S]],
    }
    assert traces.notes == CleaningReport(
        users=5, users_dropped=3, intervals=14, not_finite=3, empty=1, reversed=1, years_off=2, outside=1, clipped=2,
        merged=2,
    )  # fmt: skip


def test_a_few_stragglers_do_not_stretch_the_period(tmp_path: Path) -> None:
    content = {str(number): [[60 * number, 60 * number + 30]] for number in range(500)}
    traces = read_traces(written(tmp_path, {**content, "late": [[5 * DAY_S, 5 * DAY_S + 9]]}))
    assert traces.period_s == DAY_S
    assert "late" not in traces.intervals
    assert traces.notes is not None
    assert traces.notes.outside == 1


rough = st.one_of(st.integers(-(10**10), 10**10), st.floats(-1e6, 1e6), st.just(float("nan")), st.just(float("inf")))
users = st.dictionaries(st.text(max_size=3), st.lists(st.tuples(rough, rough), max_size=6), max_size=5)


@given(users)
@example({"": [(-1, 5e-324)]})  # so short that a division by a day leaves nothing
def test_counts_add_up_whatever_the_file_holds(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, list[tuple[float, float]]]
) -> None:
    path = written(tmp_path_factory.mktemp("rough"), content)
    try:
        traces = read_traces(path)
    except BadData as error:
        assert "no usable interval" in str(error)  # noqa: PT017 - both outcomes are right
        return
    notes = traces.notes
    assert notes is not None
    dropped = notes.not_finite + notes.empty + notes.reversed + notes.years_off + notes.outside + notes.merged
    assert dropped + sum(len(rows) for rows in traces.intervals.values()) == notes.intervals
    assert notes.users - notes.users_dropped == len(traces.intervals)


def test_a_member_of_a_zip_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "devices.zip", "w") as archive:
        archive.writestr("inner/ready.json", json.dumps({"ann": [[1, 2]]}))
    traces = read_traces(f"{tmp_path}/devices.zip:inner/ready.json")
    assert traces.intervals["ann"].tolist() == [[1, 2]]
    with pytest.raises(
        UnknownName, match=r"unknown member of .*devices.zip 'ready.json'; did you mean inner/ready.json"
    ):
        read_traces(f"{tmp_path}/devices.zip:ready.json")
    with pytest.raises(UnknownName, match=r"known: inner/ready\.json"):
        read_traces(tmp_path / "devices.zip")


def test_a_damaged_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "devices.zip").write_bytes(b"PK not really")
    with pytest.raises(BadData, match=r"devices.zip:ready.json cannot be read"):
        read_traces(f"{tmp_path}/devices.zip:ready.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"traces.json is not valid JSON"),
        ("[" * 100_000, r"traces.json is not valid JSON"),
        ([[1, 2]], r"holds a JSON list; it must be an object"),
        ({"ann": [[1, 2]], "bob": 5}, r"traces.json, id 'bob': 5 must be a list"),
        ({"ann": [[1, 2], [3]]}, r"traces.json, id 'ann', index 1: \[3\] must be two numbers"),
        ({"ann": [[1, "2"]]}, r"id 'ann', index 0: \[1, '2'\]"),
        ({"ann": [[True, 2]]}, r"id 'ann', index 0"),
        ({"ann": [[1, None]]}, r"id 'ann', index 0"),
        ({"ann": [list(range(50))]}, r"id 'ann', index 0: \[0, 1, 2.*\.\.\. must be"),
        ({"ann": []}, r"traces.json has no usable interval"),
        ({}, r"traces.json has no usable interval"),
        ({"ann": [[1.6e9, 1.6e9 + 60]]}, r"no usable interval; times must be seconds from the start"),
    ],
)
def test_malformed_files_are_refused_with_the_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        read_traces(written(tmp_path, content))


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"there is no file .*nothing.json; name a trace file as FILE.json or"):
        read_traces(tmp_path / "nothing.json")


def test_a_period_must_be_a_duration(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="period_s is 0"):
        read_traces(written(tmp_path, {"ann": [[1, 2]]}), period_s=0)


@pytest.mark.parametrize("member", ["ready_strict.json", "ready_loose.json"])
def test_traces_of_real_phones(member: str) -> None:
    if not ARCHIVE.is_file():
        pytest.skip(f"the recordings of real phones are not at {ARCHIVE}; set FEDBALANCER_DATA to their folder")
    traces = read_traces(f"{ARCHIVE}:{member}")
    notes = traces.notes
    assert notes is not None
    assert traces.period_s == 2 * DAY_S
    assert len(traces.intervals) == notes.users - notes.users_dropped > 2800
    assert notes.empty > 5000
    assert (notes.reversed, notes.years_off) == (4, 13)
    assert notes.outside + notes.clipped < 0.02 * notes.intervals
    share = {name: (rows[:, 1] - rows[:, 0]).sum() / traces.period_s for name, rows in traces.intervals.items()}
    assert all(0 < value < 0.9 for value in share.values())
    clients = [f"client {number}" for number in range(50)]
    assigned = traces.assign(clients, seed=0)
    for client in clients:
        work_s = float((assigned.intervals[client][:, 1] - assigned.intervals[client][:, 0]).sum())
        assert assigned.elapsed_s(client, 0, 3 * work_s) > 2 * traces.period_s


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
