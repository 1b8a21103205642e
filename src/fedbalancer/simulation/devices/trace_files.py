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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbalancer.core.errors import BadData, MissingData, UnknownName
from fedbalancer.core.types import FloatArray
from fedbalancer.simulation.devices.intervals import merge_intervals

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
