"""Half-open intervals [start, end) on a repeating clock, the arithmetic behind availability traces."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import FloatArray
from fedbalancer.core.types.state import Positions


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
