"""CMU's faces: by person, as large as CelebA's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.celeba import read_faces


def file(folder: Path, **changes: Any) -> Path:
    """Four people with two images each, brighter from person to person."""
    person = np.repeat(np.arange(4, dtype=np.uint8), 2)
    arrays = {
        "x": (person[:, None, None] * 50 * np.ones((1, 60, 64))).astype(np.uint8),
        "person": person,
        "eyes": np.array(["open", "sunglasses"] * 4),
    }
    np.savez(folder / "faces.npz", **(arrays | changes))
    return folder / "faces.npz"


def test_images_are_split_and_enlarged_in_three_equal_colours(tmp_path: Path) -> None:
    split = read_faces(file(tmp_path))
    assert list(split.train) == list(split.test) == [f"person0{k}" for k in range(4)]
    for name, (features, labels) in [*split.train.items(), *split.test.items()]:
        assert features.shape == (1, 3, 84, 84)
        assert features.dtype == np.uint8
        assert np.unique(features).tolist() == [50 * int(name[-1])]
        assert len(labels) == 1
    for name, (_, labels) in split.train.items():
        assert sorted([*labels, *split.test[name][1]]) == [0, 1]  # nobody's image is on both sides


def test_eyes_of_another_kind_are_named(tmp_path: Path) -> None:
    path = file(tmp_path, eyes=np.array(["open"] * 5 + ["shut"] * 3))
    with pytest.raises(BadData, match="person 2, sample 5: eyes 'shut'; must be open or sunglasses"):
        read_faces(path)


def test_images_of_another_size_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="'x' has shape"):
        read_faces(file(tmp_path, x=np.zeros((8, 64, 60), dtype=np.uint8)))
