"""From words to sequences of ten numbers, the way of LEAF's Reddit data.

A comment becomes `<BOS>` words `<EOS>`, cut into sequences of ten and filled up with `<PAD>`; the target of every token
is the one after it. A sequence is a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.task import Samples

LENGTH = 10
PAD, UNKNOWN = 0, 1
PAD_WORD = "<PAD>"


class Tokens(NamedTuple):
    """One sequence: ten tokens, and the token after each."""

    inputs: Sequence[str]
    targets: Sequence[str]


def sequences(words: Sequence[str]) -> list[Tokens]:
    """The sequences of one comment. A last one may hold only `<EOS>`: LEAF has those as well.

    >>> [first] = sequences(["hi", "there"])
    >>> first.inputs[:4], first.targets[:4]
    (['<BOS>', 'hi', 'there', '<EOS>'], ['hi', 'there', '<EOS>', '<PAD>'])
    """
    inputs = ["<BOS>", *words, "<EOS>"]
    inputs += [PAD_WORD] * (-len(inputs) % LENGTH)
    targets = [*inputs[1:], PAD_WORD]
    return [
        Tokens(inputs[start : start + LENGTH], targets[start : start + LENGTH])
        for start in range(0, len(inputs), LENGTH)
    ]


def vocabulary(training: Iterable[Tokens], size: int) -> dict[str, int]:
    """Numbers of the most frequent input tokens, the more frequent the smaller; equals by the alphabet. 0 is padding
    and 1 is every word that is not among the `size`."""
    counts = Counter(token for tokens in training for token in tokens.inputs)
    counts.pop(PAD_WORD, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {PAD_WORD: PAD, **{word: number for number, word in enumerate(ranked, start=2)}}


def known_only(samples: Iterable[Tokens], words: Collection[str]) -> list[Tokens]:
    """The sequences without the words that are not among `words`: what follows a word is the next known one. Filled up
    at the end; a sequence of which nothing is left is left out.

    >>> known_only([Tokens(["<BOS>", "hi", "zyx", "<EOS>"], ["hi", "zyx", "<EOS>", "<PAD>"])], ["<BOS>", "hi", "<EOS>"])
    [Tokens(inputs=['<BOS>', 'hi', '<EOS>', '<PAD>'], targets=['hi', '<EOS>', '<PAD>', '<PAD>'])]
    """
    known = {*words, PAD_WORD}
    found = []
    for tokens in samples:
        kept = [token for token in (*tokens.inputs, tokens.targets[-1]) if token in known]
        inputs, targets = (part + [PAD_WORD] * (len(tokens.inputs) - len(part)) for part in (kept[:-1], kept[1:]))
        if set(inputs) != {PAD_WORD}:
            found.append(Tokens(inputs, targets))
    return found


def numbered(samples: Sequence[Tokens], words: Mapping[str, int], size: int) -> Samples:
    """Inputs and targets as numbers, one row per sequence.

    Targets of padding do not count, and are marked by the number `size`, which no word has. What follows `<EOS>` does
    count, with `<PAD>` as its target, as in LEAF.
    """
    inputs, targets = (_table([part[which] for part in samples], words) for which in (0, 1))
    padding = np.array([[token == PAD_WORD for token in tokens.inputs] for tokens in samples])
    return inputs, np.where(padding, np.int16(size), targets)


def _table(rows: Sequence[Sequence[str]], words: Mapping[str, int]) -> NDArray[np.int16]:
    return np.array([[words.get(token, UNKNOWN) for token in row] for row in rows], dtype=np.int16)
