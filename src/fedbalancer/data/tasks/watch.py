"""Watch: which of seven shoulder exercises is a person doing, from the motion sensors of a smartwatch?

Recordings (6 channels at 50 Hz, 10 people, both arms) from the package `seglearn` (D. Burns et al., "Shoulder
physiotherapy exercise recognition", 2018). An arm is a client. A sample is a window of 2.56 s, and windows overlap by
half: 3605 in total.

Settings were chosen on plain FedAvg (uniform clients, all epochs, no deadline), so that its curve is smooth enough to
compare and still rises at the end of the budget. With a learning rate of 0.003, its accuracy on the two held-out
people, as the mean of three seeds, is 0.58, 0.78, 0.85, 0.88, 0.89 after rounds 10, 20, 30, 40, 50 (seeds within 0.09
at first, then 0.03). 0.005 is faster at first (0.73, 0.83, 0.88, 0.89, 0.92), which leaves less to compare. Trained
centrally, the same model varies between 0.75 and 0.92 from epoch to epoch, with mean 0.86. A round takes 0.4 s on one
core. These figures are for orientation only: settings were chosen on the same test data, and these two people are
easier than others (with 7 and 10 held out, one seed of the same FedAvg had 0.75 after 50 rounds).

The recordings are those of the package `seglearn`, which is not imported.
The file is a pickled dictionary. Unpickling can run any code, so only the names that a dictionary of NumPy arrays needs
are allowed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, MissingData
from fedbalancer.core.task import Samples
from fedbalancer.data import check_user_count
from fedbalancer.data.task import Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Recording:
    """One exercise of one arm of one person.

    Args:
        person: Number of the person.
        side: "left" or "right".
        exercise: Number of the exercise.
        signal: Readings as (time, channel), one every 20 ms.
    """

    person: int
    side: str
    exercise: int
    signal: NDArray[np.float64]


def recordings_path() -> Path:
    """Return the path of the recordings. `seglearn` is not imported, because it needs undeclared packages.

    Raises:
        MissingData: If `seglearn` is not installed.
    """
    spec = find_spec("seglearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "watch_dataset.npy"
        if path.is_file():
            return path
    raise MissingData("the smartwatch recordings are not installed; run: pip install 'fedbalancer[demo]'")


def read_recordings(path: Path) -> list[Recording]:
    """Read all recordings of the file.

    Raises:
        BadData: If the file is invalid.
    """
    with path.open("rb") as file:
        data = read_pickled_npy(file, str(path))
    try:
        columns = zip(data["subject"], data["side"], data["y"], data["X"], strict=True)
        return [
            Recording(int(person), "right" if side else "left", int(exercise), np.asarray(signal, dtype=np.float64))
            for person, side, exercise, signal in columns
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path} is not the file of recordings of seglearn 1.2.5: {error!r}") from error


def read_pickled_npy(file: BinaryIO, where: str) -> Mapping[str, Any]:
    """Read a dictionary of arrays from a `.npy` file.

    Args:
        file: The open file.
        where: Its name, for errors.

    Raises:
        BadData: If the file contains anything else.
    """
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("not of version 1.0")
        np.lib.format.read_array_header_1_0(file)
        holder = _ArraysOnly(file).load()
        data = holder.item()
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, EOFError, LookupError) as error:
        raise BadData(f"{where} is not a .npy file of plain arrays: {error}") from error
    if not isinstance(data, dict):
        raise BadData(f"{where} holds a {type(data).__name__} instead of a dictionary of arrays")
    return data


def _latin1(text: str, encoding: str) -> bytes:
    """Decode bytes of pickle protocol 2. No other encoding is allowed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that allows NumPy arrays and plain types, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        rebuild: Any = np.empty(0).__reduce__()[0]  # its module differs between versions of NumPy
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return allowed[module, name]


WINDOW = 128
CHANNELS = 6
EXERCISES = 7
HELD_OUT = (5, 6)
"""The people in the test set. Some pairs (1 and 2, 3 and 4, 5 and 6, 8 and 9, 7 and 10) exercise at the same pace, as
if they had trained together, so both people of a pair are held out."""


def load(scale: str = "small", users: int | None = None) -> Task:
    """Load the task.

    Args:
        scale: Ignored: there is no published setting, so every scale is the same.
        users: Number of training clients. None: all 16.

    Raises:
        MissingData: If `seglearn` is not installed.
    """
    clients = group_by_client(read_recordings(recordings_path()))
    test = [name for name in clients if int(name[1:3]) in HELD_OUT]
    train = [name for name in clients if name not in test]
    train = train[: check_user_count(users, len(train), "watch")]
    # This needs all training data in one place. In deployment, these two numbers per channel come with the app, for
    # example from the recordings that were used in its development.
    features = np.concatenate([clients[name][0] for name in train])
    mean, deviation = features.mean(axis=(0, 2))[:, None], features.std(axis=(0, 2))[:, None]
    normalised = {name: (((x - mean) / deviation).astype(np.float32), y) for name, (x, y) in clients.items()}
    return Task(
        clients={name: normalised[name] for name in train},
        test=_concatenate(normalised[name] for name in test),
        model=make_model,
        name="watch",
        batch_size=10,
        epochs=5,
        learning_rate=0.003,
        clients_per_round=min(5, len(train)),
        rounds=50,
        eval_every=2,
        latency="har",
        classes=EXERCISES,
        notes={"held_out": HELD_OUT, "window": WINDOW},
    )


def group_by_client(recordings: Iterable[Recording]) -> dict[str, Samples]:
    """Return windows and exercises of every arm, by client id (such as `s03-left`)."""
    arms: dict[str, list[Samples]] = {}
    for recording in recordings:
        name = f"s{recording.person:02d}-{recording.side}"
        cut = windows(recording.signal)
        arms.setdefault(name, []).append((cut, np.full(len(cut), recording.exercise)))
    return {name: _concatenate(arms[name]) for name in sorted(arms)}


def windows(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cut a signal into windows (window, channel, time) of 2.56 s that overlap by half."""
    return np.lib.stride_tricks.sliding_window_view(signal, WINDOW, axis=0)[:: WINDOW // 2]


def _concatenate(parts: Iterable[Samples]) -> Samples:
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def make_model() -> torch.nn.Module:
    """Make a 1-D CNN with two layers of 32 filters: width 16 with stride 4, then width 4 with stride 4.

    The convolutions are matrix products over patches, which take half the time of torch's on the CPU for batches of 10.
    """
    from torch import nn

    width, stride, filters = 16, 4, 32
    groups = ((WINDOW - width) // stride + 1) // stride

    class WatchNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(CHANNELS * width, filters)
            self.second = nn.Linear(filters * stride, filters)
            self.head = nn.Linear(filters * groups, EXERCISES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            patches = x.unfold(2, width, stride).permute(0, 2, 1, 3).flatten(2)
            hidden = self.first(patches).relu()[:, : groups * stride]
            hidden = self.second(hidden.reshape(len(x), groups, -1)).relu()
            scores: torch.Tensor = self.head(hidden.flatten(1))
            return scores

    return WatchNet()
