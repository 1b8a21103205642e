"""What both sources of the task `har` end in: windows of nine signals by subject."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.cache import Prepared
from fedbalancer.data.clients import joined

WINDOW = 128
"""Readings of a window: 2.56 s at 50 Hz. Windows overlap by half."""

SIGNALS = tuple(f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz")
"""The channels in order: acceleration with and without gravity in g, angular velocity in rad/s."""

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
"""The classes; the files count them from 1."""

SUBJECTS = 30


def prepared(train: Mapping[int, Samples], test: Mapping[int, Samples], where: Path) -> Prepared:
    """Arrays for the cache: training subjects side by side, and test subjects."""
    for kind, subjects in (("train", train), ("test", test)):
        if not subjects:
            raise BadData(f"{where} has no {kind} subjects; there must be at least one")
    both = sorted(train.keys() & test.keys())
    if both:
        raise BadData(f"{where}: subject {both[0]} is in both train and test; a subject must be in one of them")
    names, lengths, x, y = joined([(client_name(subject), train[subject]) for subject in sorted(train)])
    test_names, test_lengths, test_x, test_y = joined(
        [(client_name(subject), test[subject]) for subject in sorted(test)]
    )
    return Prepared(
        {"x": x, "y": y, "test_x": test_x, "test_y": test_y},
        {"names": names, "lengths": lengths, "test_names": test_names, "test_lengths": test_lengths},
    )


def client_name(subject: int) -> str:
    """A subject's client id.

    >>> client_name(3)
    's03'
    """
    return f"s{subject:02d}"


def windows(signal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Windows of (reading, channel) as (window, channel, reading), half overlapping; a rest at the end is left out.

    >>> windows(np.zeros((200, 9), dtype=np.float32)).shape
    (2, 9, 128)
    """
    if len(signal) < WINDOW:
        return np.empty((0, signal.shape[1], WINDOW), dtype=np.float32)
    return np.lib.stride_tricks.sliding_window_view(signal, WINDOW, axis=0)[:: WINDOW // 2]
