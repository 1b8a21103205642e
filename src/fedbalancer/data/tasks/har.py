"""UCI-HAR: which of six activities is a person doing, from a smartphone at the waist?

30 people, of whom 21 train and 9 test (the official split). A sample is a window of 2.56 s of nine signals at 50 Hz:
total acceleration, body acceleration and angular velocity, not normalised (D. Anguita et al., "A Public Domain Dataset
for Human Activity Recognition Using Smartphones", 2013). A person is a client.

Settings are the published ones. `small` has all people and windows, and therefore the same clock, but 32 filters and
64 units on every second reading (35,558 parameters instead of 1,602,502), and a budget of 100 rounds instead of 50,
because the paper's control loop first acts after 40 rounds. Transfer times are those of the published model at both
scales. Accuracy is over all test windows, which equals the published mean over test people weighted by their windows.

Measured with `hapt` at `small`, seeds 0 to 2: `fedavg+wfa` (61 to 66 rounds in the budget) has accuracy 0.79, 0.81,
0.83, 0.86, 0.87, 0.87, 0.88 after rounds 5, 10, 20, 30, 40, 50, 60, and still rises a little at its end. Its last five
evaluations have means 0.872, 0.880 and 0.893 and standard deviations of 0.004 to 0.009. `fedavg+1t` drops nearly every
slow phone, so seeds differ as the phones do: 0.877, 0.818 and 0.856, and single evaluations differ by 0.02 where few
people train. A run takes about 15 s on one core.

Measured at `paper`, seed 0: FedAvg+2T has 0.77, 0.79, 0.84, 0.85, 0.85, 0.86, 0.86, 0.86 after rounds 5 to 40 in steps
of 5, so 0.86 at its budget (10,750 s, 34 rounds). Published are 0.82, 0.84 and 0.80 at about this budget, on the
official windows. No client misses 2T, so waiting for all gives the same. Trained centrally, the same model has 0.84
after three epochs and 0.90 after nine. The most frequent activity has 19% of the test windows. A round takes about 9 s
on one core.

The variant `hapt` is made from the raw recordings of the same people (see `fedbalancer.data.tasks.har`). Their
activities were labelled again: walking, upstairs and downstairs have the official number of windows (except for one
more), and the three postures up to 5% more: 7,415 and 2,996 windows instead of 7,352 and 2,947.

Files: the official folder, and the raw recordings behind it (the HAPT release).

In the official folder, `train/` and `test/` each hold `subject_*.txt` and `y_*.txt` with one whole number per window,
and `Inertial Signals/` with nine files that have the 128 readings of a window per line.

The raw recordings are filtered and cut into windows as UCI-HAR documents it. Documented are: a median filter and a
third-order Butterworth low-pass filter at 20 Hz against noise; another Butterworth low-pass filter at 0.3 Hz for
gravity, whose output is subtracted from the acceleration to give the body acceleration; and windows of 2.56 s that
overlap by half.

Not documented, and chosen here: a median over three readings; a gravity filter of third order; causal filters that
start in the steady state of the first reading. In the first official window (subject 1, standing), the third axis of
the body acceleration starts at 0.056 g. Causal filters give 0.05 g there, and filters without delay -0.02 g. No choice
reproduces the official values exactly.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import IndexArray
from fedbalancer.data import Prepared, SlicedClients, Source, check_user_count, checksum, choose_source, load_or_prepare
from fedbalancer.data.clients import concatenate_users
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch


WINDOW = 128
"""Readings per window: 2.56 s at 50 Hz. Windows overlap by half."""

SIGNALS = tuple(f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz")
"""The channels: acceleration with and without gravity in g, and angular velocity in rad/s."""

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
"""The classes. The files number them from 1."""

SUBJECTS = 30


def pack_subjects(train: Mapping[int, Samples], test: Mapping[int, Samples], where: Path) -> Prepared:
    """Concatenate the samples of the subjects for the cache.

    Args:
        train: Samples of the training subjects.
        test: Samples of the test subjects.
        where: Path of the data, for errors.

    Raises:
        BadData: If a part is empty, or a subject is in both.
    """
    for kind, subjects in (("train", train), ("test", test)):
        if not subjects:
            raise BadData(f"{where} has no {kind} subjects; there must be at least one")
    both = sorted(train.keys() & test.keys())
    if both:
        raise BadData(f"{where}: subject {both[0]} is in both train and test; a subject must be in one of them")
    names, lengths, x, y = concatenate_users([(client_name(subject), train[subject]) for subject in sorted(train)])
    test_names, test_lengths, test_x, test_y = concatenate_users(
        [(client_name(subject), test[subject]) for subject in sorted(test)]
    )
    return Prepared(
        {"x": x, "y": y, "test_x": test_x, "test_y": test_y},
        {"names": names, "lengths": lengths, "test_names": test_names, "test_lengths": test_lengths},
    )


def client_name(subject: int) -> str:
    """Return the client id of a subject.

    >>> client_name(3)
    's03'
    """
    return f"s{subject:02d}"


def cut_windows(signal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut a signal (reading, channel) into windows (window, channel, reading) that overlap by half.

    Readings after the last full window are dropped.

    >>> cut_windows(np.zeros((200, 9), dtype=np.float32)).shape
    (2, 9, 128)
    """
    if len(signal) < WINDOW:
        return np.empty((0, signal.shape[1], WINDOW), dtype=np.float32)
    return np.lib.stride_tricks.sliding_window_view(signal, WINDOW, axis=0)[:: WINDOW // 2]


UCI_PARTS = ("train", "test")


def uci_files(folder: Path) -> list[Path]:
    """Return the files that are read. The other files of the folder contain features derived from them."""
    return [path for part in UCI_PARTS for path in (*_number_files(folder, part), *_signal_files(folder, part))]


def read_uci(folder: Path) -> Prepared:
    """Read the windows of all subjects of the official folder, in the official split.

    Raises:
        MissingData: If a file is missing.
        BadData: If a file is invalid.
    """
    for path in uci_files(folder):
        if not path.is_file():
            raise MissingData(f"{path} is missing; unpack the archive of UCI-HAR again")
    train, test = (_read_part(folder, part) for part in UCI_PARTS)
    return pack_subjects(train, test, folder)


def _number_files(folder: Path, part: str) -> tuple[Path, Path]:
    return folder / part / f"subject_{part}.txt", folder / part / f"y_{part}.txt"


def _signal_files(folder: Path, part: str) -> list[Path]:
    return [folder / part / "Inertial Signals" / f"{signal}_{part}.txt" for signal in SIGNALS]


def _read_part(folder: Path, part: str) -> dict[int, Samples]:
    subject_file, label_file = _number_files(folder, part)
    subjects = _read_numbers(subject_file, "subject", SUBJECTS)
    labels = _read_numbers(label_file, "activity", len(ACTIVITIES))
    if len(labels) != len(subjects):
        raise BadData(f"{label_file} has {len(labels)} lines, but {subject_file.name} has {len(subjects)}")
    features = np.stack([_read_signal(path, subjects) for path in _signal_files(folder, part)], axis=1)
    return {int(who): (features[subjects == who], labels[subjects == who] - 1) for who in np.unique(subjects)}


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not a text file of numbers: {error}") from error


def _read_numbers(path: Path, what: str, most: int) -> IndexArray:
    lines = _read_lines(path)
    if not lines:
        raise BadData(f"{path} is empty; it must have a line for every window")
    for row, line in enumerate(lines, start=1):
        if not (line.strip().isdigit() and 1 <= int(line) <= most):
            raise BadData(f"{path}, line {row}: {what} is {line.strip()!r}; it must be 1 to {most}")
    return np.array([int(line) for line in lines], dtype=np.int64)


def _read_signal(path: Path, subjects: IndexArray) -> NDArray[np.float32]:
    lines = _read_lines(path)
    if len(lines) != len(subjects):
        raise BadData(f"{path} has {len(lines)} lines, but there are {len(subjects)} windows in the file of subjects")
    try:
        values = np.loadtxt(lines, dtype=np.float32, ndmin=2, comments=None)
    except ValueError as error:
        raise BadData(_find_error(path, lines, subjects) or f"{path}: {error}") from error
    if values.shape != (len(lines), WINDOW) or not np.isfinite(values).all():
        raise BadData(_find_error(path, lines, subjects) or f"{path} has shape {values.shape}")
    return values


def _find_error(path: Path, lines: list[str], subjects: IndexArray) -> str | None:
    """Describe the first invalid line."""
    for row, (line, subject) in enumerate(zip(lines, subjects, strict=True), start=1):
        error = _check_line(line)
        if error:
            return f"{path}, line {row} (subject {subject}): {error}"
    return None


def _check_line(line: str) -> str | None:
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


TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
"""The test subjects of the official split; the other 21 train."""

FILTERS: Mapping[str, Any] = {"rate_hz": 50.0, "median": 3, "order": 3, "noise_hz": 20.0, "gravity_hz": 0.3}
"""Parameters of the filters, which are part of the cache's key."""

_SHAPES = {"acc": 3, "gyro": 3, "lengths": 3, "labels": 5}


def read_hapt(path: Path) -> Prepared:
    """Read the raw recordings: windows of the six activities of all subjects, in the official split.

    Raises:
        BadData: If the file is invalid.
    """
    data = _load_hapt(path)
    _check_labels(path, data)
    parts: dict[int, list[Samples]] = {}
    for subject, samples in _cut_recordings(data):
        parts.setdefault(subject, []).append(samples)
    subjects = {subject: _concatenate_parts(path, subject, samples) for subject, samples in parts.items()}
    train = {subject: samples for subject, samples in subjects.items() if subject not in TEST_SUBJECTS}
    test = {subject: samples for subject, samples in subjects.items() if subject in TEST_SUBJECTS}
    return pack_subjects(train, test, path)


def filter_recording(acc_g: NDArray[np.float64], gyro_rad_s: NDArray[np.float64]) -> NDArray[np.float32]:
    """Filter one recording.

    Args:
        acc_g: Acceleration as (reading, axis).
        gyro_rad_s: Angular velocity as (reading, axis).

    Returns:
        Total acceleration, body acceleration and angular velocity as (reading, channel).
    """
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
    initial = sosfilt_zi(sections)[:, :, None] * signal[0]  # the steady state of the first reading
    filtered: NDArray[np.float64] = sosfilt(sections, signal, axis=0, zi=initial)[0]
    return filtered


def _cut_recordings(data: Mapping[str, NDArray[Any]]) -> Iterator[tuple[int, Samples]]:
    """Yield subject, windows and activities of every labelled interval."""
    labels = data["labels"]
    start = 0
    for experiment, subject, length in data["lengths"].tolist():
        span = slice(start, start + length)
        signal = filter_recording(data["acc"][span] / data["acc_scale"], data["gyro"][span] / data["gyro_scale"])
        for _, _, activity, first, last in labels[labels[:, 0] == experiment].tolist():
            if activity <= len(ACTIVITIES):
                cut = cut_windows(signal[first - 1 : last])
                yield subject, (cut, np.full(len(cut), activity - 1, dtype=np.int64))
        start += length


def _concatenate_parts(path: Path, subject: int, parts: list[Samples]) -> Samples:
    features, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not len(labels):
        raise BadData(f"{path}: subject {subject} has no activity of at least {WINDOW} readings")
    return features, labels


def _load_hapt(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of the file and check their types and shapes."""
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
    """Check that every label is inside a recording of the same subject."""
    recordings: dict[int, tuple[int, int]] = {}
    for row, (experiment, subject, length) in enumerate(data["lengths"].tolist()):
        if experiment in recordings:
            raise BadData(f"{path}: lengths, row {row}: experiment {experiment} (subject {subject}) occurs twice")
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
            raise BadData(f"{where}: this subject has no experiment {experiment}")
        if not 1 <= activity <= 12:
            raise BadData(f"{where}: activity is {activity}; it must be 1 to 12")
        if not 1 <= first <= last <= recordings[experiment][1]:
            raise BadData(
                f"{where}: readings {first} to {last}, but the recording has 1 to {recordings[experiment][1]}"
            )


OFFICIAL = Source(
    task="har",
    variant="uci",
    title="UCI-HAR: Human Activity Recognition Using Smartphones",
    files=("UCI HAR Dataset",),
    licence="CC BY 4.0 (its own README: cite, no commercial use)",
    citation="D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013",
    urls=("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
    by_hand="unpack the archive and the one inside it, so that the folder 'UCI HAR Dataset' holds train and test",
)
SOURCES: tuple[Source, ...] = (
    OFFICIAL,
    Source(
        task="har",
        variant="hapt",
        title="the raw recordings behind UCI-HAR, filtered and cut as it documents",
        files=("ucihar_hapt_raw_int16.npz",),
        licence="cite; no commercial use",
        citation="J.-L. Reyes-Ortiz et al., Transition-Aware Human Activity Recognition Using Smartphones, 2016",
        official=False,
    ),
)

PAPER = {
    "batch_size": 10,
    "epochs": 5,
    "learning_rate": 0.005,
    "clients_per_round": 5,
    "rounds": 50,
    "eval_every": 5,
    "latency": "har",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {"paper": PAPER, "small": {**PAPER, "rounds": 100}}
MODEL_BYTES = 6_410_008
"""Size of the published model, used at every scale because the batch latencies are also those of that model."""


class Shape(NamedTuple):
    """Size of the model and of its input.

    Args:
        filters: Filters of the convolution.
        dense: Units of the dense layer.
        every: Step between the readings of a window that the model receives.
    """

    filters: int
    dense: int
    every: int


SHAPES = {"paper": Shape(192, 256, 1), "small": Shape(32, 64, 2)}


def load(scale: str = "small", users: int | None = None, variant: str | None = None) -> Task:
    """Load the task.

    Args:
        scale: "small" or "paper".
        users: Number of training subjects. None: all 21.
        variant: Name of the data set. None: the first one whose files exist.

    Raises:
        MissingData: If the data are not on this computer.
    """
    source = choose_source(SOURCES, variant)
    data = prepare(source)
    names, lengths = data.meta["names"], data.meta["lengths"]
    users = check_user_count(users, len(names), "har")
    settings = dict(SETTINGS[scale])
    settings["clients_per_round"] = min(settings["clients_per_round"], users)
    rows, shape = slice(sum(lengths[:users])), SHAPES[scale]
    features, test = (_thin(data.arrays[part], shape.every) for part in ("x", "test_x"))
    return Task(
        clients=SlicedClients(tuple(names[:users]), tuple(lengths[:users]), features[rows], data.arrays["y"][rows]),
        test=(test, data.arrays["test_y"]),
        model=partial(make_model, *shape),
        name="har",
        variant=source.variant,
        model_bytes=MODEL_BYTES,
        classes=len(ACTIVITIES),
        notes={"activities": ACTIVITIES, "signals": SIGNALS, "test_subjects": data.meta["test_names"]},
        **settings,
    )


def prepare(source: Source) -> Prepared:
    """Return the windows of a source, from the cache if possible."""
    path: Path = source.paths[0]
    if source.official:
        key: dict[str, Any] = {"files": [checksum(file) for file in uci_files(path) if file.is_file()]}
        return load_or_prepare("har", key, lambda: read_uci(path))
    return load_or_prepare("har", {"file": checksum(path), **FILTERS}, lambda: read_hapt(path))


def _thin(windows: NDArray[np.float32], every: int) -> NDArray[np.float32]:
    return windows if every == 1 else np.ascontiguousarray(windows[:, :, ::every])


def make_model(filters: int = 192, dense: int = 256, every: int = 1) -> torch.nn.Sequential:
    """Make the published CNN, which has 1,602,502 parameters by default.

    Weights are Glorot-uniform and biases are zero. A filter always spans a third of a second. See `Shape` for the
    arguments.
    """
    from torch import nn

    from fedbalancer.data.tasks.layers import init_glorot

    width, steps, pool = 16 // every, WINDOW // every, 4
    return init_glorot(
        nn.Sequential(
            nn.ConstantPad1d(((width - 1) // 2, width // 2), 0.0),  # same length
            nn.Conv1d(len(SIGNALS), filters, width),
            nn.MaxPool1d(pool),
            nn.ReLU(),  # after the pooling: same values, a quarter of the work
            nn.Flatten(),
            nn.Linear(filters * steps // pool, dense),
            nn.ReLU(),
            nn.Linear(dense, len(ACTIVITIES)),
        )
    )
