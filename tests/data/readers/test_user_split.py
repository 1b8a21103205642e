"""Users are split, kept and taken out again without loss or overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.task import Samples
from fedbalancer.data.readers.user_split import UserSplit, hold_out, pack, split_by_user, unpack


def users(sizes: list[int], first: int = 0) -> dict[str, Samples]:
    """User k has `sizes[k]` samples, all with the number k as feature and label."""
    return {
        f"u{k}": (np.full((size, 2), k, dtype=np.float32), np.full(size, k))
        for k, size in enumerate(sizes, start=first)
    }


@given(count=st.integers(2, 200), share=st.floats(0.0, 1.0), seed=st.integers(0, 9))
def test_every_user_is_in_one_of_two_groups_that_are_never_empty(count: int, share: float, seed: int) -> None:
    names = [f"u{k}" for k in range(count)]
    train, test = split_by_user(names, share, seed)
    assert sorted(train + test) == sorted(names)
    assert len(train) == min(max(1, int(share * count)), count - 1)
    assert (train, test) == split_by_user(names, share, seed)


def test_the_published_numbers_of_users() -> None:
    """LEAF rounds down the training users; the paper's 641 and 72 of FEMNIST are of 713."""
    assert [len(part) for part in split_by_user([str(k) for k in range(713)])] == [641, 72]


def test_the_seed_decides_who() -> None:
    names = [f"u{k}" for k in range(50)]
    assert split_by_user(names, seed=1) != split_by_user(names, seed=2)


def test_one_user_cannot_be_split() -> None:
    with pytest.raises(BadData, match="at least 2 users, not 1"):
        split_by_user(["ann"])


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=12))
def test_every_sample_comes_back_with_its_user(sizes: list[int]) -> None:
    split = hold_out(users(sizes))
    clients, test = unpack(pack(split), None)
    assert set(clients) == set(split.train)
    for name, (features, labels) in clients.items():
        np.testing.assert_array_equal(features, split.train[name][0])
        np.testing.assert_array_equal(labels, split.train[name][1])
    assert sorted(test[1]) == sorted(label for _, labels in split.test.values() for label in labels)


def test_fewer_users_are_a_random_choice_and_nested() -> None:
    data = pack(UserSplit(users([1] * 20), users([3] * 10, first=20)))
    few, test = unpack(data, 5, test_users=2)
    more, _ = unpack(data, None, 6, 2)
    assert list(more)[:5] == list(few)
    assert list(few) != [f"u{k}" for k in range(5)]
    assert len(test[1]) == 6
    assert len(few.features) == 5


@pytest.mark.parametrize("count", [0, 4])
def test_more_users_than_there_are_is_an_error(count: int) -> None:
    with pytest.raises(BadSetting, match=f"users is {count}, but the data can have 1 to 3"):
        unpack(pack(UserSplit(users([1, 2, 3]), users([1]))), count)
