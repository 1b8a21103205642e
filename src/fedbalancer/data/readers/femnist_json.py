"""FEMNIST as LEAF's JSON: x are 784 grey values from 0 (ink) to 1 (paper), y a class from 0 to 61."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.leaf import LeafUser

PIXELS = 28
CLASSES = 62


def femnist_samples(user: LeafUser) -> Samples:
    """Checked images (n, 1, 28, 28) and labels of one user."""
    for index, image in enumerate(user.x):
        if not isinstance(image, list) or len(image) != PIXELS**2:
            size = len(image) if isinstance(image, list) else type(image).__name__
            raise BadData(f"{user.where}, sample {index}: an image must be a list of 28 x 28 = 784 values, not {size}")
    features = _numbers(user)
    fair = ((features >= 0) & (features <= 1)).all(axis=1)  # False for NaN as well
    if not fair.all():
        index = int(np.argmin(fair))
        worst = features[index][~((features[index] >= 0) & (features[index] <= 1))][0]
        raise BadData(f"{user.where}, sample {index}: value {worst:g}; grey values must be from 0 to 1")
    return features.reshape(-1, 1, PIXELS, PIXELS), class_labels(user, CLASSES)


def _numbers(user: LeafUser) -> NDArray[np.float32]:
    try:
        return np.array(user.x, dtype=np.float32)
    except (TypeError, ValueError):
        for index, image in enumerate(user.x):
            if not all(isinstance(value, int | float) for value in image):
                raise BadData(f"{user.where}, sample {index}: grey values must be numbers from 0 to 1") from None
        raise


def class_labels(user: LeafUser, classes: int) -> NDArray[np.int64]:
    """The user's labels; whole numbers may be written as floats, as LEAF does for CelebA."""
    for index, label in enumerate(user.y):
        if not _is_class(label, classes):
            raise BadData(f"{user.where}, sample {index}: label {label!r}; labels must be 0 to {classes - 1}")
    return np.array(user.y, dtype=np.int64)


def _is_class(label: Any, classes: int) -> bool:
    return isinstance(label, int | float) and label in range(classes)
