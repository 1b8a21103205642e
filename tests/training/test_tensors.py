"""The conversion of a task's arrays to tensors, and which of them are cached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="tensors need the extra [torch]")

from fedbalancer.training.tensors import SampleCache, make_batch, prepare_samples  # noqa: E402


@pytest.mark.parametrize(
    ("kind", "kept", "given"),
    [
        (np.float64, np.float32, torch.float32), (np.float16, np.float32, torch.float32),
        (np.float32, np.float32, torch.float32), (np.uint8, np.uint8, torch.float32), (bool, np.bool_, torch.float32),
        (np.int32, np.int64, torch.int64), (np.uint16, np.int64, torch.int64),
    ],
)  # fmt: skip
def test_features_are_kept_small_and_given_as_models_want_them(kind: type, kept: type, given: Any) -> None:
    array = (np.arange(24).reshape(6, 4) % 2).astype(kind)
    features, labels = prepare_samples((array, np.zeros(6, dtype=np.uint8)))
    assert features.dtype == kept
    assert labels.dtype == np.int64
    for rows in (np.array([4, 1, 1]), slice(1, 3)):
        batch = make_batch(features, rows)
        assert batch.dtype == given
        assert batch.tolist() == array[rows].astype(float).tolist()
        assert batch.is_contiguous()


@pytest.mark.parametrize("rows", [slice(None), np.arange(4)])
def test_a_model_that_changes_its_input_does_not_change_the_data(rows: Any) -> None:
    array = np.ones((4, 3), dtype=np.float32)
    features, _ = prepare_samples((array, np.zeros(4)))
    make_batch(features, rows).zero_()
    assert (array == 1).all()


def test_arrays_that_cannot_be_written_and_ones_in_another_order_are_taken() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    array.flags.writeable = False
    features, _ = prepare_samples((array, np.zeros(4)))
    assert make_batch(features, np.array([2, 0])).tolist() == [[2, 6, 10], [0, 4, 8]]
    assert make_batch(features, slice(3, 4)).tolist() == [[3, 7, 11]]


def test_the_shelf_keeps_the_last_used_within_its_bytes() -> None:
    made: list[str] = []

    def make(client: str) -> tuple[Any, Any]:
        made.append(client)
        return np.zeros((2, 8), dtype=np.float32), np.zeros(2, dtype=np.int64)  # 80 bytes

    shelf = SampleCache(make, max_bytes=170)
    for client in ("ann", "bob", "ann", "cy", "ann", "bob", "ann"):
        assert len(shelf[client][1]) == 2
    assert made == ["ann", "bob", "cy", "bob"]  # cy took bob's place, because ann had been used since


def test_a_client_larger_than_the_shelf_is_kept_while_it_is_used() -> None:
    made: list[str] = []

    def make(client: str) -> tuple[Any, Any]:
        made.append(client)
        return np.zeros((9, 9)), np.zeros(9)

    shelf = SampleCache(make, max_bytes=10)
    assert shelf["ann"] is shelf["ann"]
    assert shelf["bob"] is shelf["bob"]
    assert made == ["ann", "bob"]
