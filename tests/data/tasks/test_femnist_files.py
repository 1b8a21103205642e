"""FEMNIST and its stand-ins are read, and errors name user and sample."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers import LeafUser, class_labels
from fedbalancer.data.tasks.femnist import CHARACTERS, draw, femnist_samples, invert_ink, read_digits, read_strokes

WHITE = [1.0] * 784


def user(x: list[Any], y: list[Any]) -> LeafUser:
    return LeafUser("f0000_14", x, y, Path("all_data_0.json"))


def test_images_keep_the_order_of_their_pixels() -> None:
    image = [k / 783 for k in range(784)]
    features, labels = femnist_samples(user([WHITE, image], [0, 61]))
    assert features.shape == (2, 1, 28, 28)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features[1, 0, 1, 2], 30 / 783, rtol=1e-6)
    assert labels.tolist() == [0, 61]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        (WHITE[1:], "784 values, not 783"),
        (7, "784 values, not int"),
        ([*WHITE[1:], math.nan], "value nan"),
        ([*WHITE[1:], 255], "value 255"),
        ([*WHITE[1:], -0.1], "value -0.1"),
        ([*WHITE[1:], "ink"], "must be numbers"),
        ([*WHITE[1:], None], "value nan"),
        ([*WHITE[1:], [1.0]], "must be numbers"),
    ],
)
def test_a_bad_image_is_named_with_file_user_and_index(image: Any, named: str) -> None:
    with pytest.raises(BadData, match=named) as error:
        femnist_samples(user([WHITE, image], [0, 1]))
    assert "all_data_0.json: user 'f0000_14', sample 1" in str(error.value)


@pytest.mark.parametrize("label", [-1, 62, 1.5, math.nan, "A", None, [1]])
def test_a_bad_label_is_named_with_file_user_and_index(label: Any) -> None:
    with pytest.raises(BadData, match="labels must be 0 to 61") as error:
        femnist_samples(user([WHITE, WHITE], [0, label]))
    assert "all_data_0.json: user 'f0000_14', sample 1" in str(error.value)


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert class_labels(user([], [0.0, 1.0, 1]), 2).tolist() == [0, 1, 1]


def digits_file(folder: Path, **changes: Any) -> Path:
    """Eight images of writers 7, 3 (to train) and 5 (to test)."""
    x = np.arange(8, dtype=np.uint8)[:, None, None] * np.ones((1, 28, 28), dtype=np.uint8)
    arrays = {"x": x, "y": np.arange(8, dtype=np.uint8), "writer": np.array([7, 3, 7, 3, 3, 3, 5, 5], dtype=np.int16)}
    np.savez(folder / "mnist_by_writer.npz", **(arrays | changes))
    return folder / "mnist_by_writer.npz"


def test_every_writer_has_its_images_in_order(tmp_path: Path) -> None:
    split = read_digits(digits_file(tmp_path), train=6)
    assert {name: labels.tolist() for name, (_, labels) in split.train.items()} == {
        "w0003": [1, 3, 4, 5],
        "w0007": [0, 2],
    }
    assert {name: labels.tolist() for name, (_, labels) in split.test.items()} == {"w0005": [6, 7]}
    features, labels = split.train["w0003"]
    assert features.shape == (4, 1, 28, 28)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features[:, 0, 0, 0], 1 - labels / 255, rtol=1e-6)


def test_paper_is_one_and_ink_is_zero() -> None:
    made = invert_ink(np.array([[[0, 255]]], dtype=np.uint8))
    assert made.tolist() == [[[[1.0, 0.0]]]]


def test_a_label_that_is_no_digit_is_named(tmp_path: Path) -> None:
    path = digits_file(tmp_path, y=np.array([0, 1, 10, 3, 4, 5, 6, 7]))
    with pytest.raises(BadData, match="sample 2 of writer 7 has label 10; labels must be 0 to 9"):
        read_digits(path, train=6)


def test_a_writer_in_both_parts_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="writer 3 is in both"):
        read_digits(digits_file(tmp_path), train=4)


def test_images_without_a_test_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there are only 8 images"):
        read_digits(digits_file(tmp_path))


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
def test_errors_name_character_and_writer(tmp_path: Path, changes: Any, named: str) -> None:
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
