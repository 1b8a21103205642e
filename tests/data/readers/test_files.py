"""An .npz file is never trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.files import read_npz

SHAPES = {"x": (2,), "y": ()}


def test_named_arrays_come_back_and_others_are_left(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.arange(3), z=np.zeros(9))
    assert set(read_npz(tmp_path / "a.npz", SHAPES)) == {"x", "y"}


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": np.ones((3, 2))}, "y"),
        ({"x": np.ones((3, 4)), "y": np.arange(3)}, r"'x' has shape \(3, 4\); it must be \(3, 2\)"),
        ({"x": np.ones((3, 2)), "y": np.arange(4)}, "'y' has shape"),
        ({"x": np.ones((0, 2)), "y": np.arange(0)}, "no samples"),
        ({"x": np.ones((3, 2)), "y": np.array([None, 1, 2], dtype=object)}, "damaged"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], named: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(BadData, match=named) as error:
        read_npz(path, SHAPES)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("keep", [0, 30, 300])
def test_a_truncated_file_is_damaged(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(30, 2)), y=np.arange(30))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadData, match="damaged"):
        read_npz(path, SHAPES)
