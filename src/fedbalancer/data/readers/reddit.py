"""Readers for Reddit and its stand-in, and the conversion of words to numbers.

As in LEAF, a comment becomes `<BOS>` words `<EOS>`, cut into sequences of ten tokens and filled up with `<PAD>`. The
target of every token is the next token. A sequence is a sample.

- LEAF's JSON: a comment in x is a list of sequences of ten words, and its entry in y has their `target_tokens`:

      "x": [[["<BOS>", "hi", "<EOS>", "<PAD>", ...]]], "y": [{"target_tokens": [["hi", "<EOS>", "<PAD>", ...]], ...}]

  LEAF's vocabulary is a pickle, which can run any code when it is loaded, so it is not read. It contains only the most
  frequent words of `train`, which are counted here in the same way. In these files, num_samples is the number of a
  user's comments in train, val and test together.
- `irc`: chat messages by author, one JSON object (user, day, t, text) per line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.files import json_lines
from fedbalancer.data.readers.leaf import LeafUser, leaf_files, leaf_users

LENGTH = 10
PAD, UNKNOWN = 0, 1
PAD_WORD = "<PAD>"


class Tokens(NamedTuple):
    """One sequence: ten tokens, and the token after each."""

    inputs: Sequence[str]
    targets: Sequence[str]


def cut_sequences(words: Sequence[str]) -> list[Tokens]:
    """The sequences of one comment. A last one may hold only `<EOS>`: LEAF has those as well.

    >>> [first] = cut_sequences(["hi", "there"])
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


def build_vocabulary(training: Iterable[Tokens], size: int) -> dict[str, int]:
    """Numbers of the most frequent input tokens, the more frequent the smaller; equals by the alphabet. 0 is padding
    and 1 is every word that is not among the `size`."""
    counts = Counter(token for tokens in training for token in tokens.inputs)
    counts.pop(PAD_WORD, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {PAD_WORD: PAD, **{word: number for number, word in enumerate(ranked, start=2)}}


def drop_unknown_words(samples: Iterable[Tokens], words: Collection[str]) -> list[Tokens]:
    """The sequences without the words that are not among `words`: what follows a word is the next known one. Filled up
    at the end; a sequence of which nothing is left is left out.

    >>> tokens = Tokens(["<BOS>", "hi", "zyx", "<EOS>"], ["hi", "zyx", "<EOS>", "<PAD>"])
    >>> drop_unknown_words([tokens], ["<BOS>", "hi", "<EOS>"])
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


def number_words(samples: Sequence[Tokens], words: Mapping[str, int], size: int) -> Samples:
    """Inputs and targets as numbers, one row per sequence.

    Targets of padding do not count, and are marked by the number `size`, which no word has. What follows `<EOS>` does
    count, with `<PAD>` as its target, as in LEAF.
    """
    inputs, targets = (_table([part[which] for part in samples], words) for which in (0, 1))
    padding = np.array([[token == PAD_WORD for token in tokens.inputs] for tokens in samples])
    return inputs, np.where(padding, np.int16(size), targets)


def _table(rows: Sequence[Sequence[str]], words: Mapping[str, int]) -> NDArray[np.int16]:
    return np.array([[words.get(token, UNKNOWN) for token in row] for row in rows], dtype=np.int16)


ByUser = dict[str, list[Tokens]]


def read_reddit(folder: Path) -> tuple[ByUser, ByUser]:
    """The sequences of every user for the training, and for the test."""
    files = leaf_files(folder)
    if not files["test"]:
        raise BadData(
            f"{folder} has no test/*.json; LEAF's Reddit comes with train, val and test, by time in each user"
        )
    return _read_part(files["train"]), _read_part(files["test"])


def _read_part(files: Iterable[Path]) -> ByUser:
    return {user.name: _read_sequences(user) for user in leaf_users(files, exact_counts=False)}


def _read_sequences(user: LeafUser) -> list[Tokens]:
    found: list[Tokens] = []
    for index, (comment, label) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.where}, comment {index}"
        targets = label.get("target_tokens") if isinstance(label, dict) else None
        for what, part in (("x", comment), ("target_tokens of y", targets)):
            if not _is_table(part):
                raise BadData(f"{where}: {what} must be a list of sequences of {LENGTH} words, not {part!r:.60}")
        if targets is None or len(comment) != len(targets):
            raise BadData(f"{where} has {len(comment)} sequences in x but {len(targets or ())} in target_tokens")
        found += map(Tokens, comment, targets)
    if not found:
        raise BadData(f"{user.where} has no sequences; leave the user out or give it at least one")
    return found


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == LENGTH and all(isinstance(token, str) for token in row) for row in rows
    )


_ADDRESSED = re.compile(r"^\S+:(?=\s)")
_TOKEN = re.compile(r"<[a-z]+>|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]+")
_LINK = re.compile(r"(?:https?://|www\.)\S+")


def read_irc(path: Path) -> dict[str, list[list[str]]]:
    """The messages of every user as words, in order of time; messages without any are left out."""
    stamped: dict[str, list[tuple[str, str, int, list[str]]]] = {}
    for number, record in enumerate(json_lines(path), start=1):
        user, day, time, text = (record.get(key) for key in ("user", "day", "t", "text"))
        if not (isinstance(user, int) and all(isinstance(part, str) for part in (day, time, text))):
            raise BadData(f"{path}, line {number}: a message needs user (number), day, t and text, not {record!r:.80}")
        found = split_words(str(text))
        if found:
            stamped.setdefault(f"user{user:05d}", []).append((str(day), str(time), number, found))
    return {user: [entry[3] for entry in sorted(entries)] for user, entries in stamped.items()}


def split_words(text: str) -> list[str]:
    """Lower-case words, and runs of other signs, without what is not ASCII. Links, and the name of whom a message is
    for, become one word each, as LEAF has it for links and user names.

    >>> split_words("ann: You don't need https://example.org !")
    ['<user>', 'you', "don't", 'need', '<url>', '!']
    """
    plain = _ADDRESSED.sub("<user> ", text.encode("ascii", "ignore").decode().strip())
    return _TOKEN.findall(_LINK.sub(" <url> ", plain).lower())
