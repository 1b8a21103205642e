"""Words become sequences of ten numbers as in LEAF's Reddit data."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.data.readers.reddit import (
    LENGTH,
    PAD,
    PAD_WORD,
    UNKNOWN,
    build_vocabulary,
    cut_sequences,
    number_words,
)

WORD = st.sampled_from(["a", "b", "c", "dog", "<url>"])


@given(st.lists(WORD, max_size=45))
def test_sequences_hold_the_comment_once_and_targets_are_one_ahead(words: list[str]) -> None:
    parts = cut_sequences(words)
    inputs = [token for part in parts for token in part.inputs]
    targets = [token for part in parts for token in part.targets]
    assert all(len(part.inputs) == len(part.targets) == LENGTH for part in parts)
    assert [token for token in inputs if token != PAD_WORD] == ["<BOS>", *words, "<EOS>"]
    assert [*inputs[1:], PAD_WORD] == targets


@given(st.lists(WORD, min_size=1, max_size=45), st.integers(3, 8))
def test_numbers_are_of_words_and_padding_does_not_count(words: list[str], size: int) -> None:
    parts = cut_sequences(words)
    known = build_vocabulary(parts, size)
    inputs, targets = number_words(parts, known, size)
    assert inputs.shape == targets.shape == (len(parts), LENGTH)
    assert inputs.dtype == targets.dtype == np.int16
    assert max(known.values()) < size
    assert inputs.max() < size
    counted = targets != size
    np.testing.assert_array_equal(counted, inputs != PAD)
    assert counted.sum() == len(words) + 2
    assert (targets[counted] == PAD).sum() == 1


def test_frequent_words_come_first_and_equals_by_the_alphabet() -> None:
    training = [part for words in (["b", "b", "a", "z"], ["b"]) for part in cut_sequences(words)]
    assert build_vocabulary(training, 6) == {PAD_WORD: 0, "b": 2, "<BOS>": 3, "<EOS>": 4, "a": 5}
    inputs, _ = number_words(training, build_vocabulary(training, 6), 6)
    assert inputs[0].tolist() == [3, 2, 2, 5, UNKNOWN, 4, 0, 0, 0, 0]
