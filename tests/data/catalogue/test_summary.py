"""Every sample of every client is counted once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.data import Task
from fedbalancer.data.catalogue.summary import OTHER, count_labels, describe_task


def task(labels: dict[str, object]) -> Task:
    clients = {name: (np.zeros((len(y), 2)), y) for name, y in ((n, np.asarray(v)) for n, v in labels.items())}
    like = next(iter(clients.values()))[1]
    test = (np.zeros((2, 2)), np.zeros((2, *like.shape[1:]), like.dtype))
    return Task(clients=clients, test=test, model=lambda: None, name="t", variant="v")


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20), min_size=1, max_size=8), st.integers(2, 40))
def test_nothing_is_lost_and_nothing_counted_twice(labels: list[list[int]], most: int) -> None:
    held = count_labels(task({f"c{number}": values for number, values in enumerate(labels)}), most)
    assert held.counts.sum() == held.sizes.sum() == sum(map(len, labels))
    assert held.counts.sum(axis=1).tolist() == held.sizes.tolist()
    assert held.counts.shape == (len(labels), len(held.labels))
    assert len(held.labels) <= most
    different = {value for values in labels for value in values}
    assert held.all_labels == len(different)
    assert (OTHER in held.labels) == (len(different) > most)
    for row, client in enumerate(held.clients):
        own = labels[int(client[1:])]
        assert held.distinct[row] == len(set(own))
        for column, name in enumerate(held.labels):
            if name != OTHER:
                assert held.counts[row, column] == own.count(int(name))


def test_the_largest_comes_first_and_ties_go_by_name() -> None:
    held = count_labels(task({"b": [0], "a": [1], "c": [0, 0]}))
    assert held.clients == ("c", "a", "b")
    assert held.sizes.tolist() == [2, 1, 1]
    assert held.labels == ("0", "1")
    assert (held.title, held.test_samples) == ("t (v)", 2)


def test_beyond_the_most_frequent_labels_the_rest_is_put_together() -> None:
    held = count_labels(task({"a": [5, 5, 5, 1, 2], "b": [7, 7, 5, 3]}), most_labels=3)
    assert held.labels == ("5", "7", OTHER)
    assert held.counts.tolist() == [[3, 0, 2], [1, 2, 1]]


def test_tokens_of_a_sequence_are_counted_one_by_one() -> None:
    held = count_labels(task({"a": [[1, 2, 2], [1, 1, 1]]}))
    assert held.sizes.tolist() == [2]
    assert held.counts.tolist() == [[4, 2]]


def test_labels_that_are_no_classes_are_not_counted() -> None:
    held = count_labels(task({"a": [0.5, 0.25], "b": [1.5]}))
    assert held.labels == ()
    assert held.counts.shape == (2, 0)
    assert held.sizes.tolist() == [2, 1]


@given(st.integers(1, 50), st.integers(2, 20))
def test_some_clients_are_spread_from_the_largest_to_the_smallest(count: int, most: int) -> None:
    rows = count_labels(task({f"c{number:02}": [0] for number in range(count)})).space_clients(most)
    assert len(rows) == min(count, most)
    assert rows[0] == 0
    assert rows[-1] == count - 1 or most == 1


def test_the_summary_says_how_much_of_a_model_is_trained() -> None:
    nn = pytest.importorskip("torch").nn

    def half() -> Any:
        return nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.Linear(4, 2))

    assert "22 parameters, of which 10 are trained" in describe_task(replace(task({"a": [0, 1]}), model=half))
    assert "of which" not in describe_task(replace(task({"a": [0, 1]}), model=lambda: nn.Linear(2, 2)))
