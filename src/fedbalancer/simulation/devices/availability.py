"""When devices may work: always, or as traces of real phones say.

A trace file is JSON, an object of id -> [[start_s, end_s], ...]: the seconds, counted from the start of the recording,
between which that phone was ready (idle, charging and on Wi-Fi, say). What is cleaned is said in `trace_files`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.randomness import client_keys, tickets
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.columns import IntervalColumns
from fedbalancer.simulation.devices.intervals import Cycle, merged
from fedbalancer.simulation.devices.trace_files import CleaningReport, clean, load_intervals


@dataclass(frozen=True)
class AlwaysOn:
    """An `Availability` without pauses, as in all experiments of the paper."""

    def is_available(self, client: str, at_s: float) -> bool:
        return True

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return busy_s

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        return np.ones(len(clients), dtype=bool)


@dataclass(frozen=True, eq=False)
class Traces:
    """An `Availability` of intervals [start, end) in seconds per client, which repeat every `period_s` for ever.

    The intervals may come in any order and overlap; they are kept merged. Work pauses outside them. `notes` says what
    was cleaned away if the traces were read from a file.

    >>> nights = Traces({"ann": np.array([[0.0, 6.0], [22.0, 24.0]])}, period_s=24.0)
    >>> nights.is_available("ann", 12.0), nights.elapsed_s("ann", 5.0, 2.0)
    (False, 18.0)
    """

    intervals: Mapping[str, FloatArray]
    period_s: float
    notes: CleaningReport | None = None
    _columns: IntervalColumns = field(init=False, repr=False)
    _cycles: dict[int, Cycle] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.period_s) and self.period_s > 0):
            raise BadSetting(f"period_s is {self.period_s}; it must be a number of seconds above 0")
        columns = self.intervals if isinstance(self.intervals, IntervalColumns) else self._checked_columns()
        object.__setattr__(self, "intervals", columns)
        object.__setattr__(self, "_columns", columns)

    def _checked_columns(self) -> IntervalColumns:
        # many clients may have been given one array: it is checked once and stays shared
        given = dict(self.intervals)
        first = {id(rows): client for client, rows in reversed(given.items())}
        checked = {key: _checked(client, given[client], self.period_s) for key, client in first.items()}
        return IntervalColumns.of({client: checked[id(rows)] for client, rows in given.items()})

    def is_available(self, client: str, at_s: float) -> bool:
        """Whether the client may work at this second of the clock."""
        return self._cycle(client).is_on(at_s)

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        """`is_available` of every client: one look at every trace, however many clients share it."""
        if clients is self._columns.clients:
            trace = self._columns.trace
        else:
            trace = np.array([self._trace(client) for client in clients], dtype=np.int32)
        return self._columns.on(at_s % self.period_s)[trace]

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Seconds on the clock until `busy_s` seconds of work are done that begin at `start_s`; inf if never."""
        return self._cycle(client).elapsed_s(start_s, busy_s)

    def assign(self, clients: Iterable[str], seed: int) -> Traces:
        """Traces for exactly these clients: their own where they have one, else one drawn from all that are not empty.

        What a client gets depends on its id and the seed only, not on who else there is.
        """
        held = self._columns
        pool = sorted(name for name, rows in held.items() if len(rows))
        if not pool:
            raise BadData("there is no trace to assign: no client of these traces is ever available")
        names = tuple(clients)
        drawn = tickets(seed, "availability trace", 0, client_keys(names), len(pool))
        assigned = held.given_to(names, held.trace[held.position.of(pool)][drawn])
        for name in held:
            if name in assigned.position:
                assigned.trace[assigned.position[name]] = held.trace[held.position[name]]
        return Traces(assigned, self.period_s, self.notes)

    def _trace(self, client: str) -> int:
        try:
            return int(self._columns.trace[self._columns.position[client]])
        except KeyError:
            raise BadData(f"client {client!r} has no availability trace; give all clients one with assign()") from None

    def _cycle(self, client: str) -> Cycle:
        trace = self._trace(client)
        cycle = self._cycles.get(trace)
        if cycle is None:  # made when first asked for: only what the intervals say anyway
            cycle = self._cycles[trace] = Cycle.of(self._columns.of_trace(trace), self.period_s)
        return cycle


def read_traces(path: str | Path, period_s: float | None = None) -> Traces:
    """Traces from a JSON file, or from a member of a zip as `devices.zip:ready_strict.json`, cleaned.

    Without `period_s` the recording's length is taken, in whole days, so that nights stay nights when it repeats.
    `notes` of the result counts what was dropped and clipped.
    """
    if period_s is not None and not (math.isfinite(period_s) and period_s > 0):
        raise BadSetting(f"period_s is {period_s}; it must be a number of seconds above 0")
    intervals, period_s, report = clean(load_intervals(path), period_s)
    if not intervals:
        raise BadData(f"{path} has no usable interval; times must be seconds from the start of the recording")
    return Traces(intervals, period_s, report)


def _checked(client: str, rows: FloatArray, period_s: float) -> FloatArray:
    """The intervals merged, or `BadData` with the index of the first that cannot be one."""
    try:
        values = np.asarray(rows, dtype=np.float64)
        values = values.reshape(0, 2) if values.size == 0 else values
    except (TypeError, ValueError) as error:
        raise BadData(f"trace of client {client!r} must be rows of (start_s, end_s), numbers: {error}") from error
    if values.ndim != 2 or values.shape[1] != 2:
        raise BadData(f"trace of client {client!r} has shape {values.shape}; it must be rows of (start_s, end_s)")
    good = (values[:, 0] >= 0) & (values[:, 1] >= values[:, 0]) & (values[:, 1] <= period_s)
    if not good.all():
        index = int(np.flatnonzero(~good)[0])
        where = f"trace of client {client!r}, interval {index}, is {values[index].tolist()}"
        raise BadData(f"{where}; it must be 0 <= start <= end <= {period_s:g} s, the period")
    return merged(values)
