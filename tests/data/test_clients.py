"""Clients as slices: nobody gets another's rows, and nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import MadeOnDemand
from fedbalancer.data import SlicedClients, Task, concatenate_users


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_every_client_has_its_own_rows_again(lengths: list[int]) -> None:
    users = {
        f"u{number}": (np.full((length, 2), number, np.float32), np.arange(length))
        for number, length in enumerate(lengths)
    }
    names, sizes, features, labels = concatenate_users(users)
    clients = SlicedClients(tuple(names), tuple(sizes), features, labels)
    assert list(clients) == list(users)
    assert len(clients) == len(users)
    assert clients.sizes == {name: len(samples[1]) for name, samples in users.items()}
    for name, (x, y) in users.items():
        assert np.array_equal(clients[name][0], x)
        assert np.array_equal(clients[name][1], y)
        assert np.shares_memory(clients[name][0], features)


def test_a_task_takes_them_without_looking_at_them() -> None:
    clients = SlicedClients(("a", "b"), (2, 1), np.zeros((3, 2)), np.array([0, 1, 1]))
    assert isinstance(clients, MadeOnDemand)
    task = Task(clients=clients, test=(np.zeros((1, 2)), np.array([0])), model=lambda: None)
    assert task.sizes == {"a": 2, "b": 1}
    with pytest.raises(KeyError):
        clients["c"]


@pytest.mark.parametrize(
    ("names", "lengths", "rows", "labels", "words"),
    [
        (("a", "a"), (1, 1), 2, 2, "client 'a' occurs twice"),
        (("a",), (1, 1), 2, 2, "1 client names but 2 lengths"),
        (("a", "b"), (1, 1), 3, 3, "clients have 2 samples in total, but there are 3 features and 3 labels"),
        (("a", "b"), (1, 1), 2, 3, "2 features and 3 labels"),
    ],
)
def test_names_and_rows_that_do_not_fit_are_refused(
    names: tuple[str, ...], lengths: tuple[int, ...], rows: int, labels: int, words: str
) -> None:
    with pytest.raises(BadData, match=words):
        SlicedClients(names, lengths, np.zeros((rows, 2)), np.zeros(labels, np.int64))


def test_joining_nobody_or_uneven_users_is_refused() -> None:
    with pytest.raises(BadData, match="no users"):
        concatenate_users({})
    with pytest.raises(BadData, match="user 'b' has 2 features but 1 labels"):
        concatenate_users([("a", (np.zeros((1, 2)), np.zeros(1))), ("b", (np.zeros((2, 2)), np.zeros(1)))])
