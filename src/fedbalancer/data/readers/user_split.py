"""Splits of users into training and test users, and their form in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import Samples
from fedbalancer.data.cache import Prepared
from fedbalancer.data.clients import SlicedClients, check_user_count, concatenate_users
from fedbalancer.data.readers.files import LeafUser, leaf_users


class UserSplit(NamedTuple):
    """Samples by user.

    Args:
        train: Training samples.
        test: Test samples.
    """

    train: Mapping[str, Samples]
    test: Mapping[str, Samples]


def split_by_user(names: Sequence[str], train_share: float = 0.9, seed: int = 0) -> tuple[list[str], list[str]]:
    """Split users into training and test users by LEAF's rule.

    Args:
        names: All users.
        train_share: Share of training users, rounded down.
        seed: Seed of the draw.

    Returns:
        Training users and test users.

    >>> train, test = split_by_user([f"user{k}" for k in range(55)])
    >>> len(train), len(test)
    (49, 6)
    """
    if len(names) < 2:
        raise BadData(f"a split by user needs at least 2 users, not {len(names)}")
    count = min(max(1, int(train_share * len(names))), len(names) - 1)
    chosen = set(stream(seed, "split by user").permutation(len(names))[:count].tolist())
    train = [name for row, name in enumerate(names) if row in chosen]
    return train, [name for row, name in enumerate(names) if row not in chosen]


def hold_out(users: Mapping[str, Samples], train_share: float = 0.9) -> UserSplit:
    """Split users and their samples into training and test users.

    Args:
        users: Samples by user.
        train_share: Share of training users.
    """
    train, test = split_by_user(list(users), train_share)
    return UserSplit({name: users[name] for name in train}, {name: users[name] for name in test})


def from_leaf(files: Mapping[str, Iterable[Path]], samples_of: Callable[[LeafUser], Samples]) -> UserSplit:
    """Read the users of LEAF's files, in LEAF's split. Without test files, 10% of the users become test users.

    Args:
        files: Files of each part.
        samples_of: Function that converts one user to arrays.
    """
    train, test = ({user.name: samples_of(user) for user in leaf_users(files[part])} for part in ("train", "test"))
    return UserSplit(train, test) if test else hold_out(train)


def pack(split: UserSplit) -> Prepared:
    """Convert a split for the cache, with the users in random order, so that the first ones are a random choice."""
    arrays, meta = {}, {}
    for part, users in split._asdict().items():
        order = stream(0, "order of users").permutation(len(users))
        pairs = [list(users.items())[row] for row in order]
        names, lengths, arrays[f"{part}_x"], arrays[f"{part}_y"] = concatenate_users(pairs)
        meta[part] = {"names": names, "lengths": lengths}
    return Prepared(arrays, meta)


def unpack(
    prepared: Prepared, users: int | None, most: int | None = None, test_users: int | None = None
) -> tuple[SlicedClients, Samples]:
    """Return training clients and test samples from the cache.

    Args:
        prepared: Data of the cache.
        users: Number of training clients. None: at most `most`.
        most: Largest default number of training clients. None: all.
        test_users: Largest number of test users. None: all.
    """
    names, lengths = prepared.meta["train"]["names"], prepared.meta["train"]["lengths"]
    users = len(names[:most]) if users is None else check_user_count(users, len(names), "the data")
    train = _take_users(prepared, "train", users)
    return SlicedClients(tuple(names[:users]), tuple(lengths[:users]), *train), _take_users(
        prepared, "test", test_users
    )


def _take_users(prepared: Prepared, part: str, users: int | None) -> Samples:
    end = int(np.sum(prepared.meta[part]["lengths"][:users]))
    return prepared.arrays[f"{part}_x"][:end], prepared.arrays[f"{part}_y"][:end]
