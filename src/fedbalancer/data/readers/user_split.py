"""Users of the training and users of the test: chosen, kept side by side in a cache entry, and taken out of it."""

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
from fedbalancer.data.readers.leaf import LeafUser, leaf_users


class UserSplit(NamedTuple):
    """Samples by user: those to train on and those to test on."""

    train: Mapping[str, Samples]
    test: Mapping[str, Samples]


def split_by_user(names: Sequence[str], train_share: float = 0.9, seed: int = 0) -> tuple[list[str], list[str]]:
    """Users of the training and of the test, by LEAF's rule: a random `train_share` of all, rounded down.

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


def held_out(users: Mapping[str, Samples], train_share: float = 0.9) -> UserSplit:
    """The same users in two groups."""
    train, test = split_by_user(list(users), train_share)
    return UserSplit({name: users[name] for name in train}, {name: users[name] for name in test})


def from_leaf(files: Mapping[str, Iterable[Path]], samples_of: Callable[[LeafUser], Samples]) -> UserSplit:
    """The users of LEAF's files in LEAF's own split, or 90 and 10 % of them if there is no test; `samples_of` makes
    checked arrays of one user at a time."""
    train, test = ({user.name: samples_of(user) for user in leaf_users(files[part])} for part in ("train", "test"))
    return UserSplit(train, test) if test else held_out(train)


def pack(split: UserSplit) -> Prepared:
    """What the cache keeps. The users are put into a random order, so that the first few are a fair choice of all."""
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
    """The first `users` training clients, or unless told `most` of them, and the samples of the first `test_users`
    others; None for all there are."""
    names, lengths = prepared.meta["train"]["names"], prepared.meta["train"]["lengths"]
    users = len(names[:most]) if users is None else check_user_count(users, len(names), "the data")
    train = _first(prepared, "train", users)
    return SlicedClients(tuple(names[:users]), tuple(lengths[:users]), *train), _first(prepared, "test", test_users)


def _first(prepared: Prepared, part: str, users: int | None) -> Samples:
    end = int(np.sum(prepared.meta[part]["lengths"][:users]))
    return prepared.arrays[f"{part}_x"][:end], prepared.arrays[f"{part}_y"][:end]
