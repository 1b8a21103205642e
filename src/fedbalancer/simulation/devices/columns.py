"""The intervals of many clients as columns: one copy of every trace, and for every client the number of its trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.name_index import Positions
from fedbalancer.core.types import FloatArray


class IntervalColumns(Mapping[str, FloatArray]):
    """Client -> its intervals [k, 2], read-only. All intervals lie one after the other in `rows`; those of trace t
    begin at `begin[t]` and end before `begin[t + 1]`, and the client in row r of `clients` has trace `trace[r]`."""

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
        """The columns of a mapping; clients that were given the very same array share a trace."""
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
        """The intervals of one trace."""
        return self.rows[self.begin[trace] : self.begin[trace + 1]]

    def given_to(self, clients: tuple[str, ...], trace: NDArray[np.int32]) -> IntervalColumns:
        """The same traces for other clients."""
        return IntervalColumns(clients, trace, self.rows, self.begin)

    def on(self, phase_s: float) -> NDArray[np.bool_]:
        """Of every trace, whether this second of the period lies in one of its intervals."""
        on = np.zeros(len(self.begin) - 1, dtype=bool)
        on[self.owner[(self.rows[:, 0] <= phase_s) & (phase_s < self.rows[:, 1])]] = True
        return on
