"""Reads and cleans files of availability traces; `availability` describes the format.

The known recordings of real phones (about 3,460 users and 35,000 intervals) cover two days from second 0. A sixth of
their intervals is empty, and a few phones had a clock that was years behind. Cleaning therefore has five steps:

1. Drop intervals that are not finite, empty or reversed.
2. Drop intervals with a time more than a year from second 0: one of their two times comes from a wrong clock, so their
   length is unknown. Clipping them would give such a phone days without a pause.
3. Choose the period: the fewest whole days that contain the ends of 99% of the remaining intervals. A few stragglers
   must not add days that hardly any phone recorded.
4. Clip intervals to [0, period), and drop those outside.
5. Merge overlapping and touching intervals, and drop users without any.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData, UnknownName
from fedbalancer.core.types import FloatArray
from fedbalancer.core.types.state import Positions

DAY_S = 86400.0
YEAR_S = 366 * DAY_S
_PERIOD_QUANTILE = 0.99


@dataclass(frozen=True)
class CleaningReport:
    """Counts of what a file contained and what was cleaned.

    Args:
        users: Users in the file.
        users_dropped: Users without any usable interval.
        intervals: Intervals in the file.
        not_finite: Intervals dropped because a time is not finite.
        empty: Intervals dropped because they are empty.
        reversed: Intervals dropped because they end before they start.
        years_off: Intervals dropped because a time is more than a year from second 0.
        outside: Intervals dropped because they lie outside the period.
        clipped: Intervals shortened to the period.
        merged: Intervals merged into a neighbour.
    """

    users: int
    users_dropped: int
    intervals: int
    not_finite: int
    empty: int
    reversed: int
    years_off: int
    outside: int
    clipped: int
    merged: int


def load_intervals(path: str | Path) -> dict[str, FloatArray]:
    """Read a file without cleaning it.

    Args:
        path: A JSON file, or a member of a zip file as `archive.zip:member`.

    Returns:
        One array of shape (k, 2) per id.

    Raises:
        BadData: If the file is malformed; the message names file, id and index.
    """
    try:
        content = json.loads(read_file(str(path)))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadData(
            f"{path} holds a JSON {type(content).__name__}; it must be an object of id -> [[start_s, end_s], ...]"
        )
    return {user: _rows(path, user, rows) for user, rows in content.items()}


def clean(raw: Mapping[str, FloatArray], period_s: float | None) -> tuple[dict[str, FloatArray], float, CleaningReport]:
    """Clean traces in the five steps described at the top of this file.

    Args:
        raw: Intervals per id, as `load_intervals` returns them.
        period_s: Period in seconds. Default: chosen in step 3.

    Returns:
        The usable intervals per id, the period, and the counts of what was cleaned.
    """
    every = np.concatenate([np.empty((0, 2)), *raw.values()])
    owner = np.repeat(np.arange(len(raw)), [len(rows) for rows in raw.values()])
    finite = np.isfinite(every).all(axis=1)
    forward = finite & (every[:, 0] < every[:, 1])
    near = forward & (np.abs(every) <= YEAR_S).all(axis=1)
    period_s = _period_s(every[near, 1]) if period_s is None else period_s
    inside = near & (every[:, 0] < period_s) & (every[:, 1] > 0)
    clipped = np.clip(every, 0, period_s)
    parts = np.split(clipped[inside], np.searchsorted(owner[inside], np.arange(1, len(raw))))
    kept = {user: merge_intervals(rows) for user, rows in zip(raw, parts, strict=False) if len(rows)}
    report = CleaningReport(
        users=len(raw),
        users_dropped=len(raw) - len(kept),
        intervals=len(every),
        not_finite=int((~finite).sum()),
        empty=int((finite & (every[:, 0] == every[:, 1])).sum()),
        reversed=int((finite & (every[:, 0] > every[:, 1])).sum()),
        years_off=int((forward & ~near).sum()),
        outside=int((near & ~inside).sum()),
        clipped=int((inside & (clipped != every).any(axis=1)).sum()),
        merged=int(inside.sum()) - sum(len(rows) for rows in kept.values()),
    )
    return kept, period_s, report


def _period_s(ends_s: FloatArray) -> float:
    ends_s = ends_s[ends_s > 0]
    if len(ends_s) == 0:
        return DAY_S
    return DAY_S * max(math.ceil(np.quantile(ends_s, _PERIOD_QUANTILE, method="higher") / DAY_S), 1)


def _rows(path: str | Path, user: str, rows: object) -> FloatArray:
    if not isinstance(rows, list):
        raise BadData(f"{path}, id {user!r}: {_short(rows)} must be a list of [start_s, end_s]")
    for index, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 2 and all(type(value) in (int, float) for value in row)):
            raise BadData(f"{path}, id {user!r}, index {index}: {_short(row)} must be two numbers [start_s, end_s]")
    return np.array([[_float(value) for value in row] for row in rows], dtype=np.float64).reshape(-1, 2)


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a huge JSON integer counts as infinite, and is dropped
        return math.inf


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def read_file(path: str) -> bytes:
    """Return the bytes of a file, or of a member of a zip file written as `archive.zip:member`."""
    head, colon, member = path.partition(".zip:")
    archive = Path(head + ".zip" if colon else path)
    if not archive.is_file():
        raise MissingData(f"there is no file {archive}; name a trace file as FILE.json or ARCHIVE.zip:FILE.json")
    try:
        if not (colon or zipfile.is_zipfile(archive)):
            return archive.read_bytes()
        with zipfile.ZipFile(archive) as opened:
            if member not in opened.namelist():
                raise UnknownName(f"member of {archive}", member, opened.namelist())
            return opened.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise BadData(f"{path} cannot be read: {error}") from error


def merge_intervals(intervals: FloatArray) -> FloatArray:
    """Sort intervals and merge those that overlap or touch; empty intervals are removed.

    Args:
        intervals: Rows of (start, end).

    >>> merge_intervals(np.array([[5.0, 9.0], [1.0, 3.0], [3.0, 4.0], [6.0, 7.0]])).tolist()
    [[1.0, 4.0], [5.0, 9.0]]
    """
    rows = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(rows) == 0:
        return np.empty((0, 2))
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    first = np.concatenate(([True], rows[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((rows[first, 0], reach[last]))


@dataclass(frozen=True)
class Cycle:
    """One device's intervals, repeated every `period_s`.

    The fields are tuples because `bisect` looks up single numbers faster than NumPy.

    Args:
        starts: Start of each interval; intervals are merged and lie in [0, period_s].
        ends: End of each interval.
        work_s: Seconds in intervals from the start of the period to the end of each interval.
        period_s: Length of the period.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    work_s: tuple[float, ...]
    period_s: float

    @classmethod
    def of(cls, intervals: FloatArray, period_s: float) -> Cycle:
        """Make the cycle of merged intervals."""
        starts, ends = intervals[:, 0], intervals[:, 1]
        work_s = np.cumsum(ends - starts)
        return cls(tuple(starts.tolist()), tuple(ends.tolist()), tuple(work_s.tolist()), period_s)

    def is_on(self, at_s: float) -> bool:
        """Whether `at_s` lies in an interval."""
        phase_s = at_s % self.period_s
        after = bisect_right(self.starts, phase_s)
        return after > 0 and phase_s < self.ends[after - 1]

    def elapsed_s(self, start_s: float, busy_s: float) -> float:
        """Return the seconds from `start_s` until `busy_s` seconds of work are done, which pauses outside intervals.

        The first interval is handled separately, so that short work is exact. For the rest, one division counts whole
        periods and a search finds the position in the last period.
        """
        if busy_s <= 0:
            return 0.0
        if not self.starts or math.isinf(busy_s):
            return math.inf
        phase_s, here = self._next_interval(start_s)
        wait_s = max(0.0, self.starts[here] - phase_s)
        room_s = self.ends[here] - (phase_s + wait_s)
        if busy_s <= room_s:
            return wait_s + busy_s
        periods, done_s = self._split_periods(here, busy_s - room_s)
        place = min(bisect_left(self.work_s, done_s), len(self.starts) - 1)
        end_s = self.ends[place] - max(0.0, self.work_s[place] - done_s)
        return max(busy_s, periods * self.period_s + (end_s - phase_s))

    def _next_interval(self, start_s: float) -> tuple[float, int]:
        """Return the position of `start_s` in the period (negative if before it) and the first interval not over."""
        phase_s = start_s % self.period_s
        here = bisect_right(self.ends, phase_s)
        return (phase_s, here) if here < len(self.ends) else (phase_s - self.period_s, 0)

    def _split_periods(self, here: int, rest_s: float) -> tuple[float, float]:
        """Split `rest_s` of work after interval `here` into whole periods and work in the last period."""
        total_s = self.work_s[-1]
        periods, done_s = divmod(rest_s, total_s)
        done_s += self.work_s[here]
        return (periods + 1, done_s - total_s) if done_s > total_s else (periods, done_s)


class IntervalColumns(Mapping[str, FloatArray]):
    """The intervals of many clients, as a read-only mapping; clients with the same trace share one copy.

    Args:
        clients: Ids of the clients.
        trace: Number of each client's trace.
        rows: The intervals of all traces, one trace after the other.
        begin: First row of each trace, and the total number of rows.
    """

    def __init__(self, clients: tuple[str, ...], trace: NDArray[np.int32], rows: FloatArray, begin: NDArray[np.int64]):
        self.clients = clients
        self.position = Positions(clients)
        self.trace = trace
        self.rows = rows
        self.begin = begin
        self.owner = np.repeat(np.arange(len(begin) - 1, dtype=np.int32), np.diff(begin))
        rows.flags.writeable = False

    @classmethod
    def of(cls, intervals: Mapping[str, FloatArray]) -> IntervalColumns:
        """Make the columns of a mapping; clients with the identical array share a trace."""
        numbers: dict[int, int] = {}
        trace = [numbers.setdefault(id(rows), len(numbers)) for rows in intervals.values()]
        traces = {id(rows): rows for rows in intervals.values()}
        begin = np.cumsum([0, *(len(rows) for rows in traces.values())])
        rows = np.concatenate([np.empty((0, 2)), *traces.values()])
        return cls(tuple(intervals), np.array(trace, dtype=np.int32), rows, begin)

    def __getitem__(self, client: str) -> FloatArray:
        return self.of_trace(int(self.trace[self.position[client]]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def of_trace(self, trace: int) -> FloatArray:
        """Return the intervals of one trace."""
        return self.rows[self.begin[trace] : self.begin[trace + 1]]

    def assign_to(self, clients: tuple[str, ...], trace: NDArray[np.int32]) -> IntervalColumns:
        """Assign the same traces to other clients."""
        return IntervalColumns(clients, trace, self.rows, self.begin)

    def are_on(self, phase_s: float) -> NDArray[np.bool_]:
        """Return, for every trace, whether this second of the period lies in one of its intervals."""
        on = np.zeros(len(self.begin) - 1, dtype=bool)
        on[self.owner[(self.rows[:, 0] <= phase_s) & (phase_s < self.rows[:, 1])]] = True
        return on
