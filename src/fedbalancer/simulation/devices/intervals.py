"""Half-open intervals [start, end) on a clock that repeats: the arithmetic behind availability."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from fedbalancer.core.types import FloatArray


def merged(intervals: FloatArray) -> FloatArray:
    """The same set of seconds as sorted intervals that neither overlap nor touch; empty ones vanish.

    >>> merged(np.array([[5.0, 9.0], [1.0, 3.0], [3.0, 4.0], [6.0, 7.0]])).tolist()
    [[1.0, 4.0], [5.0, 9.0]]
    """
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(kept) == 0:
        return np.empty((0, 2))
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    reach = np.maximum.accumulate(kept[:, 1])
    first = np.concatenate(([True], kept[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((kept[first, 0], reach[last]))


@dataclass(frozen=True)
class Cycle:
    """One device's intervals, repeated every `period_s`; they must be `merged` and inside [0, period_s].

    `work_s[i]` is how much can be done in a period up to the end of interval i. Plain tuples, because looking up one
    number at a time is what `bisect` is faster at than NumPy.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    work_s: tuple[float, ...]
    period_s: float

    @classmethod
    def of(cls, intervals: FloatArray, period_s: float) -> Cycle:
        """The cycle of merged intervals."""
        starts, ends = intervals[:, 0], intervals[:, 1]
        work_s = np.cumsum(ends - starts)
        return cls(tuple(starts.tolist()), tuple(ends.tolist()), tuple(work_s.tolist()), period_s)

    def is_on(self, at_s: float) -> bool:
        """Whether `at_s` lies in an interval."""
        phase_s = at_s % self.period_s
        after = bisect_right(self.starts, phase_s)
        return after > 0 and phase_s < self.ends[after - 1]

    def elapsed_s(self, start_s: float, busy_s: float) -> float:
        """Seconds from `start_s` until `busy_s` seconds of it lay in intervals.

        The first interval is served on its own, so that short work is exact; of the rest, whole periods are counted by
        one division and the place in the last period is looked up.
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
        periods, done_s = self._after(here, busy_s - room_s)
        place = min(bisect_left(self.work_s, done_s), len(self.starts) - 1)
        end_s = self.ends[place] - max(0.0, self.work_s[place] - done_s)
        return max(busy_s, periods * self.period_s + (end_s - phase_s))

    def _next_interval(self, start_s: float) -> tuple[float, int]:
        """The place of `start_s` in the period (negative: before its begin), and the first interval not yet over."""
        phase_s = start_s % self.period_s
        here = bisect_right(self.ends, phase_s)
        return (phase_s, here) if here < len(self.ends) else (phase_s - self.period_s, 0)

    def _after(self, here: int, rest_s: float) -> tuple[float, float]:
        """Whole periods, and work done in the last one, when `rest_s` are done after the end of interval `here`."""
        total_s = self.work_s[-1]
        periods, done_s = divmod(rest_s, total_s)
        done_s += self.work_s[here]
        return (periods + 1, done_s - total_s) if done_s > total_s else (periods, done_s)
