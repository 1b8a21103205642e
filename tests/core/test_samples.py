"""Ragged rows, dictionaries and tuples keep every sample's values through selection, padding and joining."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.core.samples import (
    Ragged,
    as_column,
    as_features,
    as_labels,
    concatenate,
    count_bytes,
    count_rows,
    match_ragged,
    take,
)

ROWS = st.lists(st.lists(st.integers(-50, 50), max_size=6), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, data=st.data())
def test_ragged_rows_are_selected_padded_and_joined_as_lists_are(rows: list[list[int]], data: Any) -> None:
    ragged = Ragged([np.array(row, dtype=np.int64) for row in rows], padding=-7)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    some = ragged[np.array(chosen)]
    assert [row.tolist() for row in some] == [rows[number] for number in chosen]
    longest = max(1, *(len(rows[number]) for number in chosen))
    assert some.pad().tolist() == [rows[number] + [-7] * (longest - len(rows[number])) for number in chosen]
    assert some.present(longest).sum(axis=1).tolist() == [len(rows[number]) for number in chosen]
    joined = concatenate([ragged[:1], ragged[1:]]) if len(rows) > 1 else ragged
    assert [row.tolist() for row in joined] == rows
    assert joined.padding == -7
    assert np.asarray(ragged).shape[0] == len(ragged)


def test_ragged_rows_may_be_vectors_and_survive_a_process() -> None:
    ragged = pickle.loads(pickle.dumps(Ragged([np.ones((2, 3)), np.zeros((4, 3))], mask="mask")))
    assert ragged.shape == (2, "any", 3)
    assert ragged.pad().shape == (2, 4, 3)
    assert ragged.mask == "mask"
    assert ragged.nbytes == 6 * 3 * 8 + 2 * 8


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "at least one row"), ([np.ones((2, 3)), np.ones((2, 4))], "row 1 has shape"), ([np.float64(1)], "row 0")],
)
def test_rows_that_cannot_be_joined_are_refused(rows: list[Any], words: str) -> None:
    with pytest.raises(BadData, match=words):
        Ragged(rows)


def test_lists_become_arrays_or_ragged_rows() -> None:
    assert isinstance(as_column([[1, 2], [3, 4]]), np.ndarray)
    assert isinstance(as_column([[1, 2], [3]]), Ragged)
    objects = np.empty(2, dtype=object)
    objects[:] = [np.array([1]), np.array([1, 2])]
    assert isinstance(as_column(objects), Ragged)
    assert as_labels([[1], [1, 2]], 2).padding == -100  # type: ignore[union-attr]
    assert as_labels(None, 5).shape == (5, 0)


def test_a_tuple_of_arrays_is_two_inputs_and_a_tuple_of_lists_is_one() -> None:
    assert isinstance(as_features((np.ones((2, 1)), np.ones((2, 5)))), tuple)
    assert as_features(([1.0], [2.0])).shape == (2, 1)
    assert as_features((np.int64(1), np.int64(2))).shape == (2,)


def test_rows_of_dictionaries_and_tuples_are_taken_from_every_column() -> None:
    part = {"x": np.arange(6).reshape(3, 2), "words": Ragged([[1], [2, 3], [4]])}
    some = take(part, np.array([2, 0]))
    assert some["x"].tolist() == [[4, 5], [0, 1]]
    assert [row.tolist() for row in some["words"]] == [[4], [1]]
    assert count_rows(part) == 3
    assert count_bytes(part) == part["x"].nbytes + part["words"].nbytes
    first, second = take((np.arange(3), np.arange(3) * 2), slice(1, 3))
    assert (first.tolist(), second.tolist()) == ([1, 2], [2, 4])
    joined = concatenate([part, part])
    assert count_rows(joined) == 6


def test_rows_of_equal_length_become_ragged_like_those_of_others() -> None:
    like = {"ids": Ragged([[1], [2, 3]], padding=9, mask="m"), "age": np.zeros(2)}
    matched = match_ragged({"ids": np.ones((3, 2), int), "age": np.zeros(3)}, like)
    assert isinstance(matched["ids"], Ragged)
    assert (matched["ids"].padding, matched["ids"].mask, len(matched["ids"])) == (9, "m", 3)
    assert isinstance(matched["age"], np.ndarray)
