"""MNIST by writer: nobody in both parts, and images like FEMNIST's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.femnist import invert_ink, read_digits


def file(folder: Path, **changes: Any) -> Path:
    """Eight images of writers 7, 3 (to train) and 5 (to test)."""
    x = np.arange(8, dtype=np.uint8)[:, None, None] * np.ones((1, 28, 28), dtype=np.uint8)
    arrays = {"x": x, "y": np.arange(8, dtype=np.uint8), "writer": np.array([7, 3, 7, 3, 3, 3, 5, 5], dtype=np.int16)}
    np.savez(folder / "mnist_by_writer.npz", **(arrays | changes))
    return folder / "mnist_by_writer.npz"


def test_every_writer_has_its_images_in_order(tmp_path: Path) -> None:
    split = read_digits(file(tmp_path), train=6)
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
    path = file(tmp_path, y=np.array([0, 1, 10, 3, 4, 5, 6, 7]))
    with pytest.raises(BadData, match="sample 2 of writer 7 has label 10; labels must be 0 to 9"):
        read_digits(path, train=6)


def test_a_writer_in_both_parts_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="writer 3 is in both"):
        read_digits(file(tmp_path), train=4)


def test_images_without_a_test_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there are only 8 images"):
        read_digits(file(tmp_path))
