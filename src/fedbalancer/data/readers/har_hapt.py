"""The raw recordings behind UCI-HAR (the HAPT release), filtered and cut into windows as UCI-HAR documents it.

Documented: a median filter and a third-order Butterworth low pass at 20 Hz against noise; another Butterworth low pass
at 0.3 Hz gives gravity, and what is left of the acceleration is the body's; windows of 2.56 s that overlap by half.

Not documented, chosen here: a median of three; gravity's filter of third order as well; all filters causal, settled on
the first reading. In the very first official window (subject 1, standing) the third axis of the body's acceleration
starts at 0.056 g: causal filters give 0.05 g there, filters without delay -0.02 g. The official values themselves do
not come out of these recordings to the last digit under any of these choices.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.cache import Prepared
from fedbalancer.data.readers.har_windows import ACTIVITIES, SUBJECTS, WINDOW, prepared, windows

TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
"""The official split: these nine test, the other 21 train."""

FILTERS: Mapping[str, Any] = {"rate_hz": 50.0, "median": 3, "order": 3, "noise_hz": 20.0, "gravity_hz": 0.3}
"""What the windows depend on beside the file: a part of the cache's key."""

_SHAPES = {"acc": 3, "gyro": 3, "lengths": 3, "labels": 5}


def read(path: Path) -> Prepared:
    """Windows of all subjects whose activity is one of the six, by the official split."""
    data = _load(path)
    _check_labels(path, data)
    parts: dict[int, list[Samples]] = {}
    for subject, samples in _cut(data):
        parts.setdefault(subject, []).append(samples)
    subjects = {subject: _together(path, subject, found) for subject, found in parts.items()}
    train = {subject: samples for subject, samples in subjects.items() if subject not in TEST_SUBJECTS}
    test = {subject: samples for subject, samples in subjects.items() if subject in TEST_SUBJECTS}
    return prepared(train, test, path)


def nine_channels(acc_g: NDArray[np.float64], gyro_rad_s: NDArray[np.float64]) -> NDArray[np.float32]:
    """Total acceleration, body acceleration and angular velocity of one recording, as (reading, channel)."""
    total, gyro = (_low_pass(_median(signal), FILTERS["noise_hz"]) for signal in (acc_g, gyro_rad_s))
    body = total - _low_pass(total, FILTERS["gravity_hz"])
    return np.concatenate([total, body, gyro], axis=1).astype(np.float32)


def _median(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.ndimage import median_filter

    filtered: NDArray[np.float64] = median_filter(signal, size=(FILTERS["median"], 1), mode="nearest")
    return filtered


def _low_pass(signal: NDArray[np.float64], corner_hz: float) -> NDArray[np.float64]:
    from scipy.signal import butter, sosfilt, sosfilt_zi

    sections = butter(FILTERS["order"], corner_hz, fs=FILTERS["rate_hz"], output="sos")
    settled = sosfilt_zi(sections)[:, :, None] * signal[0]  # as if the first reading had always been there
    filtered: NDArray[np.float64] = sosfilt(sections, signal, axis=0, zi=settled)[0]
    return filtered


def _cut(data: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, Samples]]:
    """Windows and activities of every stretch of one activity, with its subject."""
    labels = data["labels"]
    start = 0
    for experiment, subject, length in data["lengths"].tolist():
        span = slice(start, start + length)
        signal = nine_channels(data["acc"][span] / data["acc_scale"], data["gyro"][span] / data["gyro_scale"])
        for _, _, activity, first, last in labels[labels[:, 0] == experiment].tolist():
            if activity <= len(ACTIVITIES):
                cut = windows(signal[first - 1 : last])
                yield subject, (cut, np.full(len(cut), activity - 1, dtype=np.int64))
        start += length


def _together(path: Path, subject: int, parts: list[Samples]) -> Samples:
    features, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not len(labels):
        raise BadData(f"{path}: subject {subject} has no activity of at least {WINDOW} readings")
    return features, labels


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file, of the right kinds and shapes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in (*_SHAPES, "acc_scale", "gyro_scale")}
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise BadData(f"{path} is not a .npz file of the raw recordings: {error}") from error
    for name, columns in _SHAPES.items():
        array = data[name]
        if array.ndim != 2 or array.shape[1] != columns or array.dtype.kind not in "iu" or not len(array):
            raise BadData(
                f"{path}: {name} is {array.dtype} of shape {array.shape}, not whole numbers in {columns} columns"
            )
    for name in ("acc_scale", "gyro_scale"):
        if data[name].shape != () or not 0 < float(data[name]) < np.inf:
            raise BadData(f"{path}: {name} is {data[name]}; it must be a positive number")
    return data


def _check_labels(path: Path, data: Mapping[str, NDArray[Any]]) -> None:
    """Every recording has a subject and a length, and every label lies inside a recording of the same subject."""
    recordings: dict[int, tuple[int, int]] = {}
    for row, (experiment, subject, length) in enumerate(data["lengths"].tolist()):
        if experiment in recordings:
            raise BadData(f"{path}: lengths, row {row}: experiment {experiment} (subject {subject}) is there twice")
        if not 1 <= subject <= SUBJECTS or length < 1:
            raise BadData(f"{path}: lengths, row {row}: subject {subject} of 1 to {SUBJECTS} with {length} readings")
        recordings[experiment] = subject, length
    total = sum(length for _, length in recordings.values())
    for name in ("acc", "gyro"):
        if len(data[name]) != total:
            raise BadData(f"{path}: {name} has {len(data[name])} readings, but lengths add up to {total}")
    for row, (experiment, subject, activity, first, last) in enumerate(data["labels"].tolist()):
        where = f"{path}: labels, row {row} (subject {subject})"
        if recordings.get(experiment, (None,))[0] != subject:
            raise BadData(f"{where}: there is no experiment {experiment} of this subject")
        if not 1 <= activity <= 12:
            raise BadData(f"{where}: activity is {activity}; it must be 1 to 12")
        if not 1 <= first <= last <= recordings[experiment][1]:
            raise BadData(
                f"{where}: readings {first} to {last}, but the recording has 1 to {recordings[experiment][1]}"
            )
