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
from fedbalancer.data.readers.files import LeafUser, json_lines, leaf_files, leaf_users

LENGTH = 10
PAD, UNKNOWN = 0, 1
PAD_WORD = "<PAD>"


class Tokens(NamedTuple):
    """One sequence.

    Args:
        inputs: Ten tokens.
        targets: The token after each of them.
    """

    inputs: Sequence[str]
    targets: Sequence[str]


def cut_sequences(words: Sequence[str]) -> list[Tokens]:
    """Cut the words of one comment into sequences. As in LEAF, the last one may contain only `<EOS>`.

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
    """Number the most frequent input tokens by decreasing frequency, and alphabetically for equal frequency.

    Args:
        training: Training sequences.
        size: Size of the vocabulary. 0 is padding and 1 is any other word.
    """
    counts = Counter(token for tokens in training for token in tokens.inputs)
    counts.pop(PAD_WORD, None)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {PAD_WORD: PAD, **{word: number for number, word in enumerate(ranked, start=2)}}


def drop_unknown_words(samples: Iterable[Tokens], words: Collection[str]) -> list[Tokens]:
    """Remove unknown words from sequences and fill them up with padding. Empty sequences are dropped.

    Args:
        samples: The sequences.
        words: Known words.

    >>> tokens = Tokens(["<BOS>", "hi", "zyx", "<EOS>"], ["hi", "zyx", "<EOS>", "<PAD>"])
    >>> drop_unknown_words([tokens], ["<BOS>", "hi", "<EOS>"])
    [Tokens(inputs=['<BOS>', 'hi', '<EOS>', '<PAD>'], targets=['hi', '<EOS>', '<PAD>', '<PAD>'])]
    """
    known = {*words, PAD_WORD}
    remaining = []
    for tokens in samples:
        kept = [token for token in (*tokens.inputs, tokens.targets[-1]) if token in known]
        inputs, targets = (part + [PAD_WORD] * (len(tokens.inputs) - len(part)) for part in (kept[:-1], kept[1:]))
        if set(inputs) != {PAD_WORD}:
            remaining.append(Tokens(inputs, targets))
    return remaining


def number_words(samples: Sequence[Tokens], words: Mapping[str, int], size: int) -> Samples:
    """Convert sequences to numbers, one row per sequence.

    Targets of padding do not count and become `size`, which is no word. As in LEAF, the target of `<EOS>` counts and is
    `<PAD>`.

    Args:
        samples: The sequences.
        words: Numbers of the words.
        size: Size of the vocabulary.

    Returns:
        Inputs and targets.
    """
    inputs, targets = (_table([part[which] for part in samples], words) for which in (0, 1))
    padding = np.array([[token == PAD_WORD for token in tokens.inputs] for tokens in samples])
    return inputs, np.where(padding, np.int16(size), targets)


def _table(rows: Sequence[Sequence[str]], words: Mapping[str, int]) -> NDArray[np.int16]:
    return np.array([[words.get(token, UNKNOWN) for token in row] for row in rows], dtype=np.int16)


ByUser = dict[str, list[Tokens]]


def read_reddit(folder: Path) -> tuple[ByUser, ByUser]:
    """Read LEAF's JSON.

    Returns:
        The training sequences and the test sequences of every user.

    Raises:
        BadData: If a file or a comment is invalid, or there are no test files.
    """
    files = leaf_files(folder)
    if not files["test"]:
        raise BadData(f"{folder} has no test/*.json; LEAF's Reddit data have train, val and test")
    return _read_part(files["train"]), _read_part(files["test"])


def _read_part(files: Iterable[Path]) -> ByUser:
    return {user.name: _read_sequences(user) for user in leaf_users(files, exact_counts=False)}


def _read_sequences(user: LeafUser) -> list[Tokens]:
    sequences: list[Tokens] = []
    for index, (comment, label) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.where}, comment {index}"
        targets = label.get("target_tokens") if isinstance(label, dict) else None
        for what, part in (("x", comment), ("target_tokens of y", targets)):
            if not _is_table(part):
                raise BadData(f"{where}: {what} must be a list of sequences of {LENGTH} words, not {part!r:.60}")
        if targets is None or len(comment) != len(targets):
            raise BadData(f"{where} has {len(comment)} sequences in x but {len(targets or ())} in target_tokens")
        sequences += map(Tokens, comment, targets)
    if not sequences:
        raise BadData(f"{user.where} has no sequences; remove the user or add a sequence")
    return sequences


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == LENGTH and all(isinstance(token, str) for token in row) for row in rows
    )


_ADDRESSED = re.compile(r"^\S+:(?=\s)")
_TOKEN = re.compile(r"<[a-z]+>|[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]+")
_LINK = re.compile(r"(?:https?://|www\.)\S+")


def read_irc(path: Path) -> dict[str, list[list[str]]]:
    """Read chat messages as words, by user and in order of time. Messages without words are dropped.

    Raises:
        BadData: If a line is invalid.
    """
    stamped: dict[str, list[tuple[str, str, int, list[str]]]] = {}
    for number, record in enumerate(json_lines(path), start=1):
        user, day, time, text = (record.get(key) for key in ("user", "day", "t", "text"))
        if not (isinstance(user, int) and all(isinstance(part, str) for part in (day, time, text))):
            raise BadData(f"{path}, line {number}: a message needs user (number), day, t and text, not {record!r:.80}")
        message = split_words(str(text))
        if message:
            stamped.setdefault(f"user{user:05d}", []).append((str(day), str(time), number, message))
    return {user: [entry[3] for entry in sorted(entries)] for user, entries in stamped.items()}


def split_words(text: str) -> list[str]:
    """Split a message into lower-case words and runs of other ASCII characters.

    As in LEAF, a link becomes `<url>`, and the name of the addressee becomes `<user>`.

    >>> split_words("ann: You don't need https://example.org !")
    ['<user>', 'you', "don't", 'need', '<url>', '!']
    """
    plain = _ADDRESSED.sub("<user> ", text.encode("ascii", "ignore").decode().strip())
    return _TOKEN.findall(_LINK.sub(" <url> ", plain).lower())
