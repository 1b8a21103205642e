"""Reading and cleaning files of availability traces; the format is in `availability`.

The recordings of real phones that we know (about 3,460 users, some 35,000 intervals) cover two days from second 0; a
sixth of the intervals is empty, and a few phones had a clock that was years behind. So, interval by interval:

1. not finite, empty or reversed: dropped.
2. an end more than a year from second 0: dropped whole. One of the two times is from a wrong clock. Clipping would keep
   an interval of which nobody knows how long it was, and grant such a phone days without a pause.
3. the period: whole days, as few as hold the ends of 99 % of what is left (stragglers must not stretch it: phones would
   seem to sleep through the days that hardly anybody recorded).
4. what sticks out of [0, period) is clipped; what is outside is dropped.
5. overlapping and touching intervals are merged; users left without any are dropped.
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
from fedbalancer.simulation.devices.intervals import merged

DAY_S = 86400.0
YEAR_S = 366 * DAY_S
_PERIOD_QUANTILE = 0.99


@dataclass(frozen=True)
class CleaningReport:
    """What a file held and what became of it. Users without interval are those that came with none and those that
    lost all; `clipped` intervals are kept shortened, `merged` ones went into a neighbour."""

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
    """The file as it is, one array [k, 2] per id; `BadData` names file, id and index of what is malformed."""
    try:
        content = json.loads(_read(str(path)))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadData(
            f"{path} holds a JSON {type(content).__name__}; it must be an object of id -> [[start_s, end_s], ...]"
        )
    return {user: _rows(path, user, rows) for user, rows in content.items()}


def clean(raw: Mapping[str, FloatArray], period_s: float | None) -> tuple[dict[str, FloatArray], float, CleaningReport]:
    """Usable intervals per id, the period, and what was dropped: the five steps at the top of this file."""
    every = np.concatenate([np.empty((0, 2)), *raw.values()])
    owner = np.repeat(np.arange(len(raw)), [len(rows) for rows in raw.values()])
    finite = np.isfinite(every).all(axis=1)
    forward = finite & (every[:, 0] < every[:, 1])
    near = forward & (np.abs(every) <= YEAR_S).all(axis=1)
    period_s = _period_s(every[near, 1]) if period_s is None else period_s
    inside = near & (every[:, 0] < period_s) & (every[:, 1] > 0)
    clipped = np.clip(every, 0, period_s)
    parts = np.split(clipped[inside], np.searchsorted(owner[inside], np.arange(1, len(raw))))
    kept = {user: merged(rows) for user, rows in zip(raw, parts, strict=False) if len(rows)}
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
    except OverflowError:  # JSON has integers of any length; such a time is dropped with the infinite ones
        return math.inf


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _read(path: str) -> bytes:
    """The bytes of a file, or of a member of a zip written as `archive.zip:member`."""
    head, colon, member = path.partition(".zip:")
    archive = Path(head + ".zip" if colon else path)
    if not archive.is_file():
        raise MissingData(f"there is no file {archive}; give a trace file as FILE.json or ARCHIVE.zip:FILE.json")
    try:
        if not (colon or zipfile.is_zipfile(archive)):
            return archive.read_bytes()
        with zipfile.ZipFile(archive) as opened:
            if member not in opened.namelist():
                raise UnknownName(f"member of {archive}", member, opened.namelist())
            return opened.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise BadData(f"{path} cannot be read: {error}") from error
