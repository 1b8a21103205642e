"""All work is given out, the most expensive first, and evenly to whoever is free."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.batches import epochs
from fedbalancer.engine.executors.chunks import Chunk, ChunkQueue, training_cost
from fedbalancer.types import ClientWork

COSTS = st.lists(st.integers(1, 100), max_size=60)


def all_chunks(queue: ChunkQueue) -> list[Chunk]:
    chunks = []
    while (chunk := queue.take()) is not None:
        chunks.append(chunk)
    return chunks


@given(COSTS, st.integers(1, 8), st.integers(1, 10))
def test_every_piece_is_dealt_once_in_chunks_that_are_not_too_large(costs: list[int], workers: int, most: int) -> None:
    queue = ChunkQueue(costs, workers, most)
    chunks = all_chunks(queue)
    assert queue.is_empty
    assert sorted(position for chunk in chunks for position in chunk.positions) == list(range(len(costs)))
    assert all(list(chunk.positions) == sorted(chunk.positions) for chunk in chunks)
    assert all(len(chunk.positions) <= most for chunk in chunks)
    dearest = [max(costs[position] for position in chunk.positions) for chunk in chunks]
    assert dearest == sorted(dearest, reverse=True)


@given(COSTS, st.integers(1, 8))
def test_workers_that_take_when_free_finish_about_together(costs: list[int], workers: int) -> None:
    queue = ChunkQueue(costs, workers)
    free_at = [0.0] * workers
    while (chunk := queue.take()) is not None:
        first = free_at.index(min(free_at))
        free_at[first] += sum(costs[position] for position in chunk.positions)
    # No rule can do better than the mean, nor than the dearest piece alone.
    assert max(free_at) <= sum(costs) / workers + max(costs, default=0)


@given(st.integers(1, 10_000), st.integers(1, 8))
def test_many_equal_pieces_are_few_chunks(count: int, workers: int) -> None:
    assert len(all_chunks(ChunkQueue([1] * count, workers))) <= 2 * workers * (2 + np.log2(count))


@given(COSTS.filter(bool), st.integers(1, 4), st.data())
def test_after_a_failure_only_earlier_pieces_are_dealt(costs: list[int], workers: int, data: st.DataObject) -> None:
    queue = ChunkQueue(costs, workers)
    first = queue.take()
    assert first is not None
    queue.put_back(first)
    position = data.draw(st.integers(0, len(costs) - 1))
    queue.drop_after(position)
    dealt = [each for chunk in all_chunks(queue) for each in chunk.positions]
    assert set(range(position)) <= set(dealt)
    assert all(each < position for each in dealt if each not in first.positions)


def test_what_is_put_back_comes_next() -> None:
    queue = ChunkQueue([1, 2, 3], 1)
    taken = queue.take()
    assert taken is not None
    queue.put_back(Chunk(taken.positions, lost=1))
    assert not queue.is_empty
    assert queue.take() == Chunk(taken.positions, lost=1)


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
