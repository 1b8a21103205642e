"""Random subsets of known size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.compress.sparse import kept, random_subset, require_share
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream


@given(st.integers(1, 300), st.floats(1e-6, 1), st.integers(0, 2**63 - 1))
def test_exactly_as_many_as_asked_for(size: int, share: float, seed: int) -> None:
    count = kept(size, share)
    assert 1 <= count <= size
    assert abs(count - size * share) <= 0.5 or count == 1
    assert random_subset(size, count, stream(seed, "test")).sum() == count


def test_nothing_is_kept_of_nothing() -> None:
    assert kept(0, 0.5) == 0
    assert random_subset(0, 0, stream(0, "test")).tolist() == []


def test_every_subset_is_as_likely() -> None:
    draws = 6000
    counts: dict[tuple[bool, ...], int] = {}
    for seed in range(draws):
        chosen = tuple(random_subset(4, 2, stream(seed, "test")).tolist())
        counts[chosen] = counts.get(chosen, 0) + 1
    assert len(counts) == 6
    expected = draws / 6
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 20.5  # five degrees of freedom: one in a thousand


class EqualKeys:
    """A generator that lets too many places win at once."""

    def integers(self, *_: Any, size: int, **__: Any) -> Any:
        return np.array([7, 1, 7, 7, 9][:size], dtype=np.uint32)


def test_equal_keys_do_not_let_more_in() -> None:
    assert random_subset(5, 3, EqualKeys()).tolist() == [True, True, True, False, False]  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(BadSetting, match=r"Somebody: share is .* over 0 and at most 1"):
        require_share(share, "Somebody")
