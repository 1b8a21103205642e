"""When a run is evaluated by its clock, and what it takes to say that it has reached a target.

The grid is the same for all runs that are given the same step, however long their rounds are: so no method gets more
chances to touch a target than another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from fedbalancer.core.types.arrays import total
from fedbalancer.reporting.rule import CLOCK_SLACK, HELD
from fedbalancer.store.rows import SECONDS, EvalRow


def grid_times(step_s: float, after_s: float, until_s: float) -> list[float]:
    """The times of the grid that pass in a round, its end included and its start not. They depend on nothing else, so
    that a run that is resumed, or carried on, stays on its grid.

    >>> grid_times(10.0, 20.0, 45.0), grid_times(10.0, 45.0, 50.0), grid_times(10.0, 50.0, 59.0)
    ([30.0, 40.0], [50.0], [])
    """
    first, last = (math.floor(clock_s / step_s * (1 + CLOCK_SLACK)) for clock_s in (after_s, until_s))
    return [number * step_s for number in range(first + 1, last + 1)]


def is_at(time_s: float, end_s: float) -> bool:
    """Whether a time of the grid is the very end of a round, at which its model exists already."""
    return time_s >= end_s * (1 - CLOCK_SLACK)


class Reached:
    """The highest accuracy that a run has held on its grid or, if it has none, touched by rounds."""

    def __init__(self, on_grid: bool) -> None:
        self._on_grid = on_grid
        self._touched = self._held = -math.inf
        self._window: deque[float] = deque(maxlen=HELD)

    def note(self, rows: Iterable[EvalRow]) -> None:
        """Take up evaluations, in their order."""
        for row in rows:
            if row.schedule == SECONDS:
                self._window.append(row.accuracy)
                if len(self._window) == HELD:
                    self._held = max(self._held, total(self._window) / HELD)
            elif row.clock_s > 0:
                self._touched = max(self._touched, row.accuracy)

    def is_at(self, target: float) -> bool:
        """Whether the target was held on the grid; of a run without one, whether it was touched."""
        return self._held >= target if self._on_grid else self._touched >= target
