"""A matrix that SGD moves is the same matrix whether its sum of products is kept factored or formed."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="layers need the extra [torch]")

from torch import Tensor  # noqa: E402

from fedbalancer.training.fast import dense  # noqa: E402
from fedbalancer.training.fast.dense import MovingWeight  # noqa: E402

shapes = st.tuples(st.integers(1, 60), st.integers(1, 60))
batches = st.lists(st.integers(0, 6), max_size=12)


def steps(weight: MovingWeight, start: Tensor, rows: list[int], mu: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix, its update, and what the products with it gave on the way."""
    weight.begin(start, 0.1, mu)
    generator = torch.Generator().manual_seed(seed)
    out, width = start.shape
    seen = [torch.zeros(0)]
    for count in rows:
        x, g = (torch.randn(count, size, generator=generator).to(start.dtype) for size in (width, out))
        y, z = start.new_zeros(count, out), start.new_zeros(count, width)
        weight.add_outputs(y, x)
        weight.step(x, g, z)
        seen += [y.flatten(), z.flatten()]
    final, update = torch.empty_like(start), torch.empty_like(start)
    weight.write(final)
    weight.write_update(update)
    return final, update, torch.cat(seen)


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    rows=batches,
    share=st.sampled_from([1, 2, 8]),
    mu=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 99),
)
def test_factored_and_formed_are_the_same(
    shape: tuple[int, int], rows: list[int], share: int, mu: float, seed: int
) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()
    before = start.clone()
    with patch.object(dense, "SHARE", 10**9):
        formed = steps(MovingWeight(), start, rows, mu, seed)
    with patch.object(dense, "SHARE", share), patch.object(dense, "MIN_STEPS", 1):
        factored = steps(MovingWeight(), start, rows, mu, seed)
    assert torch.equal(start, before)
    for one, other in zip(factored, formed, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(shapes, min_size=2, max_size=4), rows=batches)
def test_one_for_matrices_of_any_size_in_turn(sizes: list[tuple[int, int]], rows: list[int]) -> None:
    weight = MovingWeight()
    for number, size in enumerate(sizes):
        start = torch.randn(size, generator=torch.Generator().manual_seed(number))
        found = steps(weight, start, rows, 0.2, number)
        fresh = steps(MovingWeight(), start, rows, 0.2, number)
        assert all(torch.equal(one, other) for one, other in zip(found, fresh, strict=True))
