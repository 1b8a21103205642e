"""Only the largest values travel; the others are kept for later."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.client.compress import GradientDropping
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import Layout, Weights

updates = arrays(np.float32, 30, elements=st.floats(-1e6, 1e6, width=32))
LAYOUT = Layout((("w", (5, 5)), ("b", (5,))))


def sent_and_kept(share: float, update: Weights, residual: Weights | None) -> tuple[Weights, Weights]:
    policy = GradientDropping(share)
    payload, kept = policy.encode(update, LAYOUT, 0, residual)
    return policy.decode(payload, LAYOUT, 0), kept


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
    payload, _ = policy.encode(np.arange(30, dtype=np.float32), LAYOUT, 0, None)
    with pytest.raises(ValueError, match="positions"):
        policy.decode(payload[:12] + b"\xff" * (len(payload) - 12), LAYOUT, 0)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(BadSetting, match="GradientDropping: share = 2"):
        GradientDropping(2)
