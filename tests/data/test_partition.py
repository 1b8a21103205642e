"""Partitions: everything is somebody's, nobody has nothing, and the seed decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.data.partition import Partition, by_column, dirichlet, iid, shards

KINDS: dict[str, Callable[[Any, int, int], Partition]] = {
    "dirichlet": lambda labels, clients, seed: dirichlet(labels, clients, 0.3, seed),
    "dirichlet, extreme": lambda labels, clients, seed: dirichlet(labels, clients, 0.001, seed),
    "shards": lambda labels, clients, seed: shards(labels, clients, 1, seed),
    "iid": lambda labels, clients, seed: iid(len(labels), clients, seed),
}


def check(partition: Partition, samples: int) -> None:
    assert list(partition) == sorted(partition)
    for rows in partition.values():
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()
    together = np.concatenate(list(partition.values()))
    assert sorted(together.tolist()) == list(range(samples))


def same(one: Partition, other: Partition) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[client], other[client]) for client in one)


@pytest.mark.parametrize("kind", KINDS)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=80), data=st.data(), seed=st.integers(0, 2**40))
def test_every_sample_has_one_client_and_every_client_a_sample(
    kind: str, labels: list[int], data: st.DataObject, seed: int
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    partition = KINDS[kind](labels, clients, seed)
    assert len(partition) == clients
    check(partition, len(labels))
    assert same(partition, KINDS[kind](labels, clients, seed))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_partition(kind: str) -> None:
    labels = np.arange(300) % 10
    assert not same(KINDS[kind](labels, 10, 0), KINDS[kind](labels, 10, 1))


def test_a_small_alpha_gives_few_labels_a_client_and_a_large_one_all() -> None:
    labels = np.arange(6000) % 10

    def kinds(alpha: float) -> float:
        return float(np.mean([len(np.unique(labels[rows])) for rows in dirichlet(labels, 20, alpha).values()]))

    assert kinds(0.01) < 2.5
    assert kinds(1000) == 10


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 50))
def test_a_client_of_shards_has_no_more_labels_than_shards_and_their_edges(clients: int, each: int, seed: int) -> None:
    labels = np.arange(240) % 8
    partition = shards(labels, clients, each, seed)
    check(partition, 240)
    most = int(np.ceil(8 / (clients * each))) + 1
    assert all(len(np.unique(labels[rows])) <= each * most for rows in partition.values())


@given(st.integers(1, 200), st.data())
def test_iid_sizes_differ_by_one_at_most(samples: int, data: st.DataObject) -> None:
    sizes = [len(rows) for rows in iid(samples, data.draw(st.integers(1, samples))).values()]
    assert max(sizes) - min(sizes) <= 1


def test_labels_may_be_text() -> None:
    check(dirichlet(["walk", "run", "walk", "sit"], 2), 4)
    check(shards(np.array(["walk", "run", "walk", "sit"]), 2, 2), 4)


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=30))
def test_a_column_of_text_groups_equal_values(values: list[str]) -> None:
    partition = by_column(np.array(values, dtype=object))
    assert set(partition) == set(values)
    for value, rows in partition.items():
        assert rows.tolist() == [row for row, other in enumerate(values) if other == value]


def test_a_column_of_numbers_is_in_the_order_of_numbers() -> None:
    assert list(by_column([10, 9, 100])) == ["9", "10", "100"]
    assert list(by_column([10.0, 9.0])) == ["9", "10"]
    assert list(by_column([b"ann", b"bob"])) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dirichlet([0, 1], 3), "clients = 3 must be a whole number from 1 to 2 for 2 samples"),
        (lambda: iid(5, 0), "clients = 0 must be a whole number from 1 to 5"),
        (lambda: iid(5, 2.0), r"clients = 2.0 must be a whole number"),  # type: ignore[arg-type]
        (lambda: iid(5, True), "clients = True"),
        (lambda: dirichlet([0, 1], 1, alpha=0), "alpha = 0 must be a number from 0.001 to 1e"),
        (lambda: dirichlet([0, 1], 1, alpha=float("nan")), "alpha = nan"),
        (lambda: dirichlet([0, 1], 1, alpha="0.5"), "alpha = '0.5'"),  # type: ignore[arg-type]
        (lambda: shards([0, 1, 0, 1], 2, 3), "shards_per_client = 3 must be a whole number from 1 to 2 for 2 clients"),
        (lambda: iid(5, 2, seed=-1), "seed = -1 must be"),
    ],
)
def test_bad_values_name_their_range(call: Callable[[], Partition], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        call()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["ann", None], "row 1 has no user"),
        (["ann", ""], "row 1 has no user"),
        ([1.0, 2.0, float("nan")], "row 2 has no user"),
        ([], "at least one"),
        ([["ann"], ["bob"]], "one user id per sample"),
    ],
)
def test_a_missing_id_names_its_row(values: Any, words: str) -> None:
    with pytest.raises(BadData, match=words):
        by_column(values)


def test_labels_are_one_a_sample() -> None:
    with pytest.raises(BadData, match="one label per sample"):
        dirichlet(np.zeros((3, 2)), 1)
    with pytest.raises(BadData, match="one label per sample"):
        shards([], 1)
