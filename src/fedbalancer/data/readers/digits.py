"""MNIST with the real writer of each image: the digits among FEMNIST's own handwriting.

The file has x uint8 [n, 28, 28] (ink is 255), y, and writer. MNIST's own split, 60,000 images and 10,000, is one by
user: no writer is in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.npz import read_npz
from fedbalancer.data.readers.user_split import UserSplit

TRAIN = 60_000
"""The first so many images are MNIST's training set."""


def read_digits(path: Path, train: int = TRAIN) -> UserSplit:
    """Images (n, 1, 28, 28) from 0 (ink) to 1 (paper), as in FEMNIST, and digits of every writer, in MNIST's split."""
    arrays = read_npz(path, {"x": (28, 28), "y": (), "writer": ()})
    x, y, writer = arrays["x"], arrays["y"], arrays["writer"].astype(np.int64)
    if y.min() < 0 or y.max() > 9:
        bad = int(np.flatnonzero((y < 0) | (y > 9))[0])
        raise BadData(f"{path}: sample {bad} of writer {writer[bad]} has label {y[bad]}; labels must be 0 to 9")
    both = np.intersect1d(writer[:train], writer[train:])
    if len(both) or len(y) <= train:
        what = f"writer {both[0]} is in both" if len(both) else f"there are only {len(y)} images"
        raise BadData(f"{path}: the first {train} images are to train and the rest to test, but {what}")

    return UserSplit(*(_by_writer(x[rows], y[rows], writer[rows]) for rows in (slice(train), slice(train, None))))


def _by_writer(x: NDArray[Any], y: NDArray[Any], writer: NDArray[np.int64]) -> dict[str, Samples]:
    users: dict[str, Samples] = {}
    for name in np.unique(writer):
        mine = np.flatnonzero(writer == name)
        users[f"w{name:04d}"] = (ink_on_paper(x[mine]), y[mine].astype(np.int64))
    return users


def ink_on_paper(ink: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Images (n, 1, 28, 28) from 0 (ink) to 1 (paper) as in FEMNIST, of images with ink 255 on paper 0."""
    return np.subtract(1, ink / np.float32(255), dtype=np.float32)[:, None]
