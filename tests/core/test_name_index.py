"""Positions: a dictionary's answers without a dictionary's memory."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types.state import Positions

some_names = st.lists(st.text(max_size=4), unique=True, max_size=20).map(tuple)


@given(some_names, st.booleans(), st.text(max_size=4))
def test_answers_as_a_dictionary_does(names: tuple[str, ...], in_order: bool, stranger: str) -> None:
    names = tuple(sorted(names)) if in_order else names
    found, expected = Positions(names), {name: row for row, name in enumerate(names)}
    assert found == expected
    assert list(found) == list(names)
    assert len(found) == len(names)
    assert (stranger in found) == (stranger in expected)
    assert found.of(names[::-1]).tolist() == list(range(len(names)))[::-1]


@pytest.mark.parametrize("name", ["", "a", "bb", "d"])
def test_a_stranger_is_an_error(name: str) -> None:
    for names in (("b", "c"), ("c", "b"), ()):
        with pytest.raises(KeyError, match=repr(name)):
            Positions(names)[name]


def test_copies_answer_the_same() -> None:
    for names in (("a", "b", "c"), ("b", "c", "a")):
        found = Positions(names)
        assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == found
