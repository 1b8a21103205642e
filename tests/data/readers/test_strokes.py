"""Pen strokes become images like FEMNIST's."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.femnist import CHARACTERS, draw, read_strokes

LINE = [[[100, 100], [100, 300]]]
SMALL = [[[100, 100], [140, 140]]]


def file(folder: Path, writers: int = 4, **changes: Any) -> Path:
    """Every character is a line; of letters, small ones are smaller. `changes` replaces characters, None drops one."""
    content = {c: [SMALL if c.islower() else LINE for _ in range(writers)] for c in CHARACTERS} | changes
    path = folder / "strokes.json.xz"
    path.write_bytes(lzma.compress(json.dumps({c: d for c, d in content.items() if d is not None}).encode()))
    return path


def test_every_writer_has_every_class_once_in_femnists_order(tmp_path: Path) -> None:
    split = read_strokes(file(tmp_path, writers=10))
    assert len(split.train) == 9
    assert len(split.test) == 1
    assert not set(split.train) & set(split.test)
    for features, labels in split.train.values():
        assert features.shape == (62, 1, 28, 28)
        assert labels.tolist() == list(range(62))
        assert features.min() == 0
        assert features.max() == 1
    assert CHARACTERS[10] == "A"
    assert CHARACTERS[36] == "a"


def test_small_letters_stay_smaller_than_capitals(tmp_path: Path) -> None:
    features, _ = next(iter(read_strokes(file(tmp_path)).train.values()))
    ink = (1 - features).sum(axis=(1, 2, 3))
    assert ink[36] < 0.5 * ink[10]


@settings(max_examples=40)
@given(
    points=st.lists(st.tuples(st.integers(-2000, 2000), st.integers(-2000, 2000)), min_size=1, max_size=20),
    scale=st.floats(1e-3, 10),
)
def test_any_drawing_leaves_ink_in_the_middle_and_none_at_the_edge(points: Any, scale: float) -> None:
    image = draw([np.array(points, dtype=np.float64)], scale)
    assert image.shape == (28, 28)
    assert image.any()
    assert not np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]]).any()
    rows, columns = (np.flatnonzero(image.any(axis=axis)) for axis in (1, 0))
    assert abs(rows[0] + rows[-1] - 27) <= 2
    assert abs(columns[0] + columns[-1] - 27) <= 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"z": None}, "each of the 62 characters"),
        ({"?": [LINE] * 4}, "each of the 62 characters"),
        ({"B": [LINE] * 3}, "'B' was drawn by 3 writers, '0' by 4"),
        ({"B": [LINE, [], LINE, LINE]}, "'B' of writer 1 has no strokes"),
        ({"B": [LINE, LINE, [[[1, 2], [3]]], LINE]}, "'B' of writer 2 is not a list of strokes"),
        ({"B": [LINE, LINE, LINE, [[[1, 2]], []]]}, "'B' of writer 3: stroke 1 must be"),
        ({"B": [LINE, LINE, LINE, [[[1, float("nan")]]]]}, "'B' of writer 3: stroke 0 must be"),
        ({"B": [LINE, LINE, LINE, 5]}, "'B' of writer 3 is not a list"),
    ],
)
def test_what_is_wrong_is_said_with_character_and_writer(tmp_path: Path, changes: Any, named: str) -> None:
    path = file(tmp_path, **changes)
    with pytest.raises(BadData) as error:
        read_strokes(path)
    assert named in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("keep", [0, 40])
def test_a_truncated_file_is_damaged(tmp_path: Path, keep: int) -> None:
    path = file(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadData, match="damaged"):
        read_strokes(path)
