"""watch"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import BadSetting
from fedbalancer.tasks.task import Samples, Task
from fedbalancer.tasks.watch_data import Recording, read_recordings, recordings_path

if TYPE_CHECKING:
    import torch

WINDOW = 128
HELD_OUT = (2, 8)
EXERCISES = 7
CHANNELS = 6


def windows(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Windows of 2.56 s, half overlapping, as (window, channel, time); a rest at the end is left out."""
    return np.lib.stride_tricks.sliding_window_view(signal, WINDOW, axis=0)[:: WINDOW // 2]


def by_client(recordings: list[Recording]) -> dict[str, Samples]:
    """Windows and exercises of every arm, named like `s03-left`, in order of name."""
    arms: dict[str, list[tuple[NDArray[np.float64], int]]] = {}
    for recording in recordings:
        name = f"s{recording.person:02d}-{recording.side}"
        arms.setdefault(name, []).append((windows(recording.signal), recording.exercise))
    return {
        name: (
            np.concatenate([part for part, _ in arms[name]]),
            np.repeat([exercise for _, exercise in arms[name]], [len(part) for part, _ in arms[name]]),
        )
        for name in sorted(arms)
    }
