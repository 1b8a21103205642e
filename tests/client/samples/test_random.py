"""As many samples as Algorithm 1 selects, but any of them."""

from __future__ import annotations

import numpy as np
from builders import make_order
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.client.samples import OverThreshold, RandomSamples


@given(
    st.none() | st.lists(st.floats(0, 4), min_size=30, max_size=30),
    st.floats(0, 4),
    st.floats(1, 80),
    st.sampled_from([0.5, 0.8, 1.0]),
    st.integers(0, 9),
)
def test_the_number_is_that_of_algorithm_1(
    losses: list[float] | None, threshold: float, deadline_s: float, p: float, seed: int
) -> None:
    order = make_order(loss_threshold=threshold, deadline_s=deadline_s)
    values = None if losses is None else np.array(losses)
    chosen, alike = (
        policy.select(30, values, 1.0, order, np.random.default_rng(seed))
        for policy in (RandomSamples(), OverThreshold(p))
    )
    assert (chosen is None) == (alike is None)
    if chosen is not None and alike is not None:
        assert len(chosen) == len(alike)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert set(chosen.tolist()) <= set(range(30))


def test_every_sample_is_as_likely_whatever_its_loss() -> None:
    losses = np.concatenate([np.full(8, 0.1), np.full(4, 0.9)])  # |OT| = 4
    order, rng, seen = make_order(loss_threshold=0.5, deadline_s=1.0), np.random.default_rng(0), np.zeros(12)
    for _ in range(3000):
        seen[RandomSamples().select(12, losses, 1.0, order, rng)] += 1
    assert seen.sum() == 3000 * 4
    # Draws without replacement vary less than a multinomial; scaled by the share left out, chi-square holds.
    statistic = ((seen - seen.mean()) ** 2).sum() / seen.mean() * (12 - 1) / (12 - 4)
    assert 0.001 < stats.chi2.sf(statistic, 11) < 0.999


def test_has_no_cap_to_tell() -> None:
    assert RandomSamples().cap(np.array([1, 2, 3])) is None
