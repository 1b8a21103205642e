"""Reading the UCI-HAR folder as the UCI archive gives it.

`train/` and `test/` each hold `subject_*.txt` and `y_*.txt`, one line with a whole number for every window, and in
`Inertial Signals/` nine files with the 128 readings of every window in a line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import IndexArray
from fedbalancer.data.cache import Prepared
from fedbalancer.data.readers.har_windows import ACTIVITIES, SIGNALS, SUBJECTS, WINDOW, prepared

PARTS = ("train", "test")


def files(folder: Path) -> list[Path]:
    """The files that are read; the others of the folder are features made of them."""
    return [path for part in PARTS for path in (*_numbers_of(folder, part), *_signals_of(folder, part))]


def read(folder: Path) -> Prepared:
    """Windows of all subjects, by the official split."""
    for path in files(folder):
        if not path.is_file():
            raise MissingData(f"{path} is missing; unpack the whole archive of UCI-HAR again")
    train, test = (_read_part(folder, part) for part in PARTS)
    return prepared(train, test, folder)


def _numbers_of(folder: Path, part: str) -> tuple[Path, Path]:
    return folder / part / f"subject_{part}.txt", folder / part / f"y_{part}.txt"


def _signals_of(folder: Path, part: str) -> list[Path]:
    return [folder / part / "Inertial Signals" / f"{signal}_{part}.txt" for signal in SIGNALS]


def _read_part(folder: Path, part: str) -> dict[int, Samples]:
    subject_file, label_file = _numbers_of(folder, part)
    subjects = _read_numbers(subject_file, "subject", SUBJECTS)
    labels = _read_numbers(label_file, "activity", len(ACTIVITIES))
    if len(labels) != len(subjects):
        raise BadData(f"{label_file} has {len(labels)} lines, but {subject_file.name} has {len(subjects)}")
    features = np.stack([_read_signal(path, subjects) for path in _signals_of(folder, part)], axis=1)
    return {int(who): (features[subjects == who], labels[subjects == who] - 1) for who in np.unique(subjects)}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not a text file of numbers: {error}") from error


def _read_numbers(path: Path, what: str, most: int) -> IndexArray:
    lines = _lines(path)
    if not lines:
        raise BadData(f"{path} is empty; it must have a line for every window")
    for row, line in enumerate(lines, start=1):
        if not (line.strip().isdigit() and 1 <= int(line) <= most):
            raise BadData(f"{path}, line {row}: {what} is {line.strip()!r}; it must be 1 to {most}")
    return np.array([int(line) for line in lines], dtype=np.int64)


def _read_signal(path: Path, subjects: IndexArray) -> NDArray[np.float32]:
    lines = _lines(path)
    if len(lines) != len(subjects):
        raise BadData(f"{path} has {len(lines)} lines, but there are {len(subjects)} windows in the file of subjects")
    try:
        values = np.loadtxt(lines, dtype=np.float32, ndmin=2, comments=None)
    except ValueError as error:
        raise BadData(_first_fault(path, lines, subjects) or f"{path}: {error}") from error
    if values.shape != (len(lines), WINDOW) or not np.isfinite(values).all():
        raise BadData(_first_fault(path, lines, subjects) or f"{path} has shape {values.shape}")
    return values


def _first_fault(path: Path, lines: list[str], subjects: IndexArray) -> str | None:
    """What is wrong with the first line that cannot be used."""
    for row, (line, subject) in enumerate(zip(lines, subjects, strict=True), start=1):
        fault = _fault(line)
        if fault:
            return f"{path}, line {row} (subject {subject}): {fault}"
    return None


def _fault(line: str) -> str | None:
    words = line.split()
    if len(words) != WINDOW:
        return f"{len(words)} readings; there must be {WINDOW}"
    for place, word in enumerate(words, start=1):
        try:
            finite = abs(float(word)) <= float(np.finfo(np.float32).max)
        except ValueError:
            finite = False
        if not finite:
            return f"reading {place} is {word!r}; it must be a finite number"
    return None
