"""LEAF's Reddit JSON: a comment in x is a list of sequences of ten words, its entry in y has their `target_tokens`.

    "x": [[["<BOS>", "hi", "<EOS>", "<PAD>", ...]]], "y": [{"target_tokens": [["hi", "<EOS>", "<PAD>", ...]], ...}]

LEAF's vocabulary is a pickle, which may run any code when it is opened, so it is not read. It holds nothing but the
most frequent words of `train`, and these are counted here in the same way.

Here num_samples is the number of a user's comments in train, val and test together, in all three of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedbalancer.core.errors import BadData
from fedbalancer.data.readers.leaf import LeafUser, leaf_files, leaf_users
from fedbalancer.data.readers.vocabulary import LENGTH, Tokens

ByUser = dict[str, list[Tokens]]


def read_reddit(folder: Path) -> tuple[ByUser, ByUser]:
    """The sequences of every user for the training, and for the test."""
    files = leaf_files(folder)
    if not files["test"]:
        raise BadData(
            f"{folder} has no test/*.json; LEAF's Reddit comes with train, val and test, by time in each user"
        )
    return _part(files["train"]), _part(files["test"])


def _part(files: Iterable[Path]) -> ByUser:
    return {user.name: _sequences(user) for user in leaf_users(files, exact_counts=False)}


def _sequences(user: LeafUser) -> list[Tokens]:
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
