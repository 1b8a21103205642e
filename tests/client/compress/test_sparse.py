"""Compressors that send a subset of an update's values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.client.compress import GradientDropping, RandomMask, Subsample
from fedbalancer.client.compress.sparse import kept, random_subset
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import FloatArray, Layout, Weights


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
    for policy in (RandomMask, Subsample, GradientDropping):
        with pytest.raises(BadSetting, match=f"{policy.__name__}: share = .* must be a number > 0 and <= 1"):
            policy(share=share)


LAYOUT = Layout((("w", (8, 4)), ("b", (8,))))
UPDATE = np.random.default_rng(0).normal(size=40).astype(np.float32)


def arrived(share: float, seed: int) -> Weights:
    policy = RandomMask(share)
    return policy.decode(policy.encode(UPDATE, LAYOUT, seed, None)[0], LAYOUT, seed)


@pytest.mark.parametrize(("share", "count"), [(0.25, 10), (0.01, 1), (0.13, 5), (1.0, 40)])
def test_a_share_of_the_values_travels_alone_and_arrives_unscaled(share: float, count: int) -> None:
    found = arrived(share, 0)
    assert RandomMask(share).encoded_bytes(LAYOUT) == 4 * count
    assert np.count_nonzero(found) == count
    assert found[found != 0].tolist() == UPDATE[found != 0].tolist()


def test_every_place_is_kept_as_often() -> None:
    seeds = 2000
    times = sum((arrived(0.25, seed) != 0).astype(int) for seed in range(seeds))
    assert np.abs(times / seeds - 0.25).max() < 4.5 * math.sqrt(0.25 * 0.75 / seeds)
    assert times.sum() == seeds * 10


def test_a_share_that_is_none_is_refused_of_random_mask() -> None:
    with pytest.raises(BadSetting, match="RandomMask: share = 0"):
        RandomMask(0)


LONG_LAYOUT = Layout((("w", (8, 4)), ("b", (9,))))
LONG_UPDATE = np.random.default_rng(0).normal(size=41).astype(np.float32)
SEEDS = 2000


def arrivals(share: float) -> FloatArray:
    policy = Subsample(share)
    sent = ((policy.encode(LONG_UPDATE, LONG_LAYOUT, seed, None)[0], seed) for seed in range(SEEDS))
    return np.array([policy.decode(payload, LONG_LAYOUT, seed) for payload, seed in sent], dtype=np.float64)


@pytest.mark.parametrize(("share", "count"), [(0.25, 10), (0.06, 2), (0.9, 37)])
def test_the_mean_is_the_update_and_the_error_is_that_of_the_formula(share: float, count: int) -> None:
    found = arrivals(share)
    assert Subsample(share).encoded_bytes(LONG_LAYOUT) == 4 * count
    assert (np.count_nonzero(found, axis=1) == count).all()
    score = (found.mean(axis=0) - LONG_UPDATE) / (found.std(axis=0) / np.sqrt(SEEDS))
    assert np.abs(score).max() < 4.5
    along = found @ LONG_UPDATE / (LONG_UPDATE @ LONG_UPDATE)  # all values at once, so that a wrong factor shows
    assert abs(along.mean() - 1) < 4.5 * along.std() / np.sqrt(SEEDS) < 0.12
    errors = ((found - LONG_UPDATE) ** 2).sum(axis=1)
    expected = (len(LONG_UPDATE) / count - 1) * (LONG_UPDATE**2).sum()
    assert abs(errors.mean() - expected) < 4.5 * errors.std() / np.sqrt(SEEDS)


def test_everything_kept_is_everything() -> None:
    policy = Subsample(1.0)
    assert (
        policy.decode(policy.encode(LONG_UPDATE, LONG_LAYOUT, 3, None)[0], LONG_LAYOUT, 3).tobytes()
        == LONG_UPDATE.tobytes()
    )


def test_a_share_that_is_none_is_refused_of_subsample() -> None:
    with pytest.raises(BadSetting, match=r"Subsample: share = 1\.5"):
        Subsample(1.5)


updates = arrays(np.float32, 30, elements=st.floats(-1e6, 1e6, width=32))
DROP_LAYOUT = Layout((("w", (5, 5)), ("b", (5,))))


def sent_and_kept(share: float, update: Weights, residual: Weights | None) -> tuple[Weights, Weights]:
    policy = GradientDropping(share)
    payload, kept = policy.encode(update, DROP_LAYOUT, 0, residual)
    return policy.decode(payload, DROP_LAYOUT, 0), kept


@given(updates, st.none() | updates, st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_sent_and_kept_are_the_update_and_what_was_kept_before(
    update: Weights, residual: Weights | None, share: float
) -> None:
    sent, kept = sent_and_kept(share, update, residual)
    before = update if residual is None else update + residual
    assert (sent + kept).tolist() == before.tolist()
    assert not (sent * kept).any()
    count = max(round(30 * share), 1)
    assert np.count_nonzero(sent) <= count
    largest = np.sort(np.abs(before))[::-1]
    assert np.sort(np.abs(sent))[::-1].tolist() == [*largest[:count].tolist(), *[0] * (30 - count)]


def test_everything_arrives_in_the_end() -> None:
    update = np.linspace(0.1, 1.0, 30).astype(np.float32)
    total, residual = np.zeros(30), np.zeros(30, dtype=np.float32)
    for _ in range(400):
        sent, residual = sent_and_kept(0.1, update, residual)
        total += sent
    assert total + residual == pytest.approx(400 * update, rel=1e-4)
    assert residual.max() < update.sum()  # it does not grow with the rounds


@pytest.mark.parametrize(("size", "share"), [(6_603_710, 0.01), (1_602_502, 0.01), (10_000, 0.1), (1000, 0.001)])
def test_bytes_are_those_of_the_values_and_of_their_positions(size: int, share: float) -> None:
    count = max(round(size * share), 1)
    bits = 8 * GradientDropping(share).encoded_bytes(Layout([("w", (size,))]))
    positions = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    assert 32 * count + positions / math.log(2) <= bits <= count * (32 + 2 + math.log2(size / count)) + 16
    assert bits <= count * (32 + math.ceil(math.log2(size))) + 16


def test_bytes_that_nobody_encoded_are_refused() -> None:
    policy = GradientDropping(0.1)
    payload, _ = policy.encode(np.arange(30, dtype=np.float32), DROP_LAYOUT, 0, None)
    with pytest.raises(ValueError, match="positions"):
        policy.decode(payload[:12] + b"\xff" * (len(payload) - 12), DROP_LAYOUT, 0)


def test_a_share_that_is_none_is_refused_when_dropping() -> None:
    with pytest.raises(BadSetting, match="GradientDropping: share = 2"):
        GradientDropping(2)
