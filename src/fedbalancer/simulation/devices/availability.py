"""When devices may work: always, or according to traces of real phones.

A trace file is JSON, an object of id -> [[start_s, end_s], ...]: the seconds since the start of the recording between
which that phone was ready (for example idle, charging and on Wi-Fi). `trace_files` describes how files are cleaned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.interfaces import Availability
from fedbalancer.core.randomness import client_keys, tickets
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.trace_files import (
    CleaningReport,
    Cycle,
    IntervalColumns,
    clean,
    load_intervals,
    merge_intervals,
)


@runtime_checkable
class ManyAvailable(Protocol):
    """An optional method of an `Availability` that answers for many clients at once."""

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        """Return `is_available` of every client."""


def are_available(availability: Availability, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
    """Return whether every client may work at a second of the clock.

    Args:
        availability: When clients may work.
        clients: Ids of the clients.
        at_s: Second on the run's clock.
    """
    if isinstance(availability, ManyAvailable):
        return availability.are_available(clients, at_s)
    return np.fromiter((availability.is_available(client, at_s) for client in clients), bool, len(clients))


@dataclass(frozen=True)
class AlwaysOn:
    """An `Availability` without pauses, as in all experiments of the paper.

    >>> AlwaysOn().elapsed_s("ann", start_s=5.0, busy_s=2.0)
    2.0
    """

    def is_available(self, client: str, at_s: float) -> bool:
        """Return True."""
        return True

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Return `busy_s`."""
        return busy_s

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        """Return True for every client."""
        return np.ones(len(clients), dtype=bool)


@dataclass(frozen=True, eq=False)
class Traces:
    """An `Availability` of intervals [start, end) per client; work pauses outside them.

    Args:
        intervals: Rows of (start_s, end_s) by client, in any order; overlapping intervals are merged.
        period_s: Seconds after which the intervals repeat.
        notes: What was cleaned, if the traces come from a file.

    Raises:
        BadSetting: If the period is not a positive number.
        BadData: If an interval is malformed or lies outside the period.

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
        columns = self.intervals if isinstance(self.intervals, IntervalColumns) else self._make_columns()
        object.__setattr__(self, "intervals", columns)
        object.__setattr__(self, "_columns", columns)

    def _make_columns(self) -> IntervalColumns:
        # Clients may share one array; it is checked once and stays shared.
        intervals = dict(self.intervals)
        first = {id(rows): client for client, rows in reversed(intervals.items())}
        checked = {key: _check_intervals(client, intervals[client], self.period_s) for key, client in first.items()}
        return IntervalColumns.of({client: checked[id(rows)] for client, rows in intervals.items()})

    def is_available(self, client: str, at_s: float) -> bool:
        """Return whether the client may work at a second of the clock."""
        return self._cycle(client).is_on(at_s)

    def are_available(self, clients: Sequence[str], at_s: float) -> NDArray[np.bool_]:
        """Return `is_available` of every client; each shared trace is examined once."""
        if clients is self._columns.clients:
            trace = self._columns.trace
        else:
            trace = np.array([self._trace(client) for client in clients], dtype=np.int32)
        return self._columns.are_on(at_s % self.period_s)[trace]

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        """Return the seconds from `start_s` until `busy_s` seconds of work are done; inf if never."""
        return self._cycle(client).elapsed_s(start_s, busy_s)

    def assign(self, clients: Iterable[str], seed: int) -> Traces:
        """Assign a trace to each of these clients: its own, or one drawn from all traces that are not empty.

        The draw depends on the client's id and the seed only, not on the other clients.

        Args:
            clients: Ids of the clients.
            seed: The run's seed.

        Raises:
            BadData: If all traces are empty.
        """
        columns = self._columns
        pool = sorted(name for name, rows in columns.items() if len(rows))
        if not pool:
            raise BadData("there is no trace to assign: no client of these traces is ever available")
        names = tuple(clients)
        drawn = tickets(seed, "availability trace", 0, client_keys(names), len(pool))
        assigned = columns.assign_to(names, columns.trace[columns.position.of(pool)][drawn])
        for name in columns:
            if name in assigned.position:
                assigned.trace[assigned.position[name]] = columns.trace[columns.position[name]]
        return Traces(assigned, self.period_s, self.notes)

    def _trace(self, client: str) -> int:
        try:
            return int(self._columns.trace[self._columns.position[client]])
        except KeyError:
            raise BadData(f"client {client!r} has no availability trace; assign() gives every client one") from None

    def _cycle(self, client: str) -> Cycle:
        trace = self._trace(client)
        cycle = self._cycles.get(trace)
        if cycle is None:
            cycle = self._cycles[trace] = Cycle.of(self._columns.of_trace(trace), self.period_s)
        return cycle


def read_traces(path: str | Path, period_s: float | None = None) -> Traces:
    """Read and clean traces from a JSON file.

    Args:
        path: A JSON file, or a member of a zip file as `devices.zip:ready_strict.json`.
        period_s: Seconds after which the traces repeat. Default: the length of the recording in whole days, so that
            nights stay nights.

    Returns:
        The traces; their `notes` count what was dropped and clipped.

    Raises:
        BadSetting: If the period is not a positive number.
        BadData: If the file is malformed or has no usable interval.
        MissingData: If there is no such file.
    """
    if period_s is not None and not (math.isfinite(period_s) and period_s > 0):
        raise BadSetting(f"period_s is {period_s}; it must be a number of seconds above 0")
    intervals, period_s, report = clean(load_intervals(path), period_s)
    if not intervals:
        raise BadData(f"{path} has no usable interval; times must be seconds from the start of the recording")
    return Traces(intervals, period_s, report)


def _check_intervals(client: str, rows: FloatArray, period_s: float) -> FloatArray:
    """Return the merged intervals; `BadData` names the first invalid one."""
    try:
        values = np.asarray(rows, dtype=np.float64)
        values = values.reshape(0, 2) if values.size == 0 else values
    except (TypeError, ValueError) as error:
        raise BadData(f"trace of client {client!r} must be rows of (start_s, end_s), numbers: {error}") from error
    if values.ndim != 2 or values.shape[1] != 2:
        raise BadData(f"trace of client {client!r} has shape {values.shape}; it must be rows of (start_s, end_s)")
    valid = (values[:, 0] >= 0) & (values[:, 1] >= values[:, 0]) & (values[:, 1] <= period_s)
    if not valid.all():
        index = int(np.flatnonzero(~valid)[0])
        where = f"trace of client {client!r}, interval {index}, is {values[index].tolist()}"
        raise BadData(f"{where}; it must be 0 <= start <= end <= {period_s:g} s, the period")
    return merge_intervals(values)
