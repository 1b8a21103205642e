"""Chunks of work, and workers that answer requests."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.work import epochs
from fedbalancer.core.errors import BadData
from fedbalancer.core.types import ClientWork
from fedbalancer.simulation.executors.distributed import Chunk, cut_chunks, make_portable, training_cost

COSTS = st.lists(st.integers(1, 100), max_size=60)


@given(COSTS, st.integers(1, 8), st.integers(1, 10))
def test_every_item_is_in_one_chunk_and_no_chunk_is_too_large(costs: list[int], workers: int, most: int) -> None:
    chunks = cut_chunks(costs, workers, most)
    assert sorted(position for chunk in chunks for position in chunk.positions) == list(range(len(costs)))
    assert all(list(chunk.positions) == sorted(chunk.positions) for chunk in chunks)
    assert all(len(chunk.positions) <= most for chunk in chunks)
    dearest = [max(costs[position] for position in chunk.positions) for chunk in chunks]
    assert dearest == sorted(dearest, reverse=True)


@given(COSTS, st.integers(1, 8))
def test_workers_that_take_when_free_finish_about_together(costs: list[int], workers: int) -> None:
    free_at = [0.0] * workers
    for chunk in cut_chunks(costs, workers):
        first = free_at.index(min(free_at))
        free_at[first] += sum(costs[position] for position in chunk.positions)
    # No rule can do better than the mean, nor than the most expensive item alone.
    assert max(free_at) <= sum(costs) / workers + max(costs, default=0)


@given(st.integers(1, 10_000), st.integers(1, 8))
def test_many_equal_items_are_few_chunks(count: int, workers: int) -> None:
    assert len(cut_chunks([1] * count, workers)) <= 2 * workers * (2 + np.log2(count))


def test_the_part_of_a_chunk_before_a_failure_keeps_count_of_the_lost() -> None:
    assert Chunk((1, 4, 7), lost=1).before(5) == Chunk((1, 4), lost=1)
    assert Chunk((1, 4, 7)).before(1).positions == ()


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 5), st.none() | st.integers(1, 4))
def test_the_predicted_cost_counts_the_samples_of_whole_epochs(
    samples: int, batch_size: int, passes: int, epoch_batches: int | None
) -> None:
    per_epoch = min(-(-samples // batch_size), epoch_batches or samples)
    work = ClientWork(
        "a", np.arange(samples), per_epoch * passes, batch_size, 0.1, 0.0, None, 0, epoch_batches=epoch_batches
    )
    visits = sum(len(rows) for rows in epochs(work))
    assert abs(training_cost(work) - batch_size - visits) < 1e-6


class Stubborn(Exception):
    """Cannot be made again from what it holds."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize("error", [ValueError("seven"), KeyError("seven"), Stubborn("seven", "eight")])
def test_a_strangers_error_says_where_it_arose(error: Exception) -> None:
    came = cloudpickle.loads(cloudpickle.dumps(make_portable(raised(error))))
    assert "seven" in str(came)
    assert "in raised" in "".join(came.__notes__), "the traceback is in a note"


def test_one_that_cannot_travel_keeps_its_name() -> None:
    came = make_portable(raised(Stubborn("seven", "eight")))
    assert (type(came), str(came)) == (RuntimeError, "Stubborn: seven and eight")


def test_one_of_ours_says_enough() -> None:
    assert not hasattr(make_portable(raised(BadData("the label 17"))), "__notes__")
