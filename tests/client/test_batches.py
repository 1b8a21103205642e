"""The order in which a client sees its samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.work import batches, epochs
from fedbalancer.core.types import ClientWork


def work(size: int, count: int, batch_size: int, seed: int = 0, client: str = "ann") -> ClientWork:
    return ClientWork(client, np.arange(size) * 3, count, batch_size, 0.1, 0.0, None, seed)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 12))
def test_every_epoch_is_a_shuffle_of_all_samples_in_batches_with_a_short_last_one(
    size: int, count: int, batch_size: int
) -> None:
    found = list(batches(work(size, count, batch_size)))
    assert len(found) == count
    per_epoch = -(-size // batch_size)
    assert [epoch for epoch, _ in found] == [number // per_epoch for number in range(count)]
    for epoch in range(count // per_epoch):
        rows = np.concatenate([rows for number, rows in found if number == epoch])
        assert sorted(rows) == list(np.arange(size) * 3)
        sizes = [len(rows) for number, rows in found if number == epoch]
        assert sizes[:-1] == [batch_size] * (per_epoch - 1)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 12), st.integers(1, 5))
def test_an_epoch_cut_short_is_the_beginning_of_the_whole_one(
    size: int, count: int, batch_size: int, per_epoch: int
) -> None:
    whole = work(size, 40 * (-(-size // batch_size)), batch_size)
    short = replace(whole, batches=count, epoch_batches=per_epoch)
    full = list(epochs(whole))
    found = list(epochs(short))
    per_epoch = min(per_epoch, -(-size // batch_size))
    assert sum(-(-len(rows) // batch_size) for rows in found) == count
    for number, rows in enumerate(found):
        left = count - number * per_epoch
        assert list(rows) == list(full[number][: min(per_epoch, left) * batch_size])
    assert [list(rows) for _, rows in batches(short)] == [
        list(rows[at : at + batch_size]) for rows in found for at in range(0, len(rows), batch_size)
    ]


def test_the_order_depends_on_seed_client_and_epoch() -> None:
    def first(*arguments: object, epoch: int = 0) -> list[int]:
        return list(dict(batches(work(50, 2, 50, *arguments)))[epoch])  # type: ignore[arg-type]

    assert first(1) == first(1)
    assert len({tuple(order) for order in (first(1), first(2), first(1, "bob"), first(1, epoch=1))}) == 4


def test_batches_of_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        list(batches(work(0, 1, 10)))


def test_epochs_of_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs of 0 batches"):
        list(batches(replace(work(5, 1, 10), epoch_batches=0)))
