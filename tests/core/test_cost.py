"""The cost of a batch and the factors by which measured seconds are scaled."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.cost import FIXED_SHARE, PUBLISHED, BatchCost, LatencyScale
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FORWARD_PASS_EPOCHS, batches_per_epoch
from fedbalancer.simulation.devices import LATENCY_MS

rows = st.sampled_from(sorted(PUBLISHED))
sizes = st.integers(1, 1000)
costs = st.builds(
    lambda flops, share, size: BatchCost(flops, flops * share, size),
    st.floats(1.0, 1e15), st.floats(0.1, 1.0), sizes,
)  # fmt: skip


def test_every_latency_row_has_the_cost_of_its_model() -> None:
    assert PUBLISHED.keys() == LATENCY_MS.keys()


@pytest.mark.parametrize("row", sorted(PUBLISHED))
def test_published_settings_keep_the_published_seconds_to_the_digit(row: str) -> None:
    scale = LatencyScale.published(row, PUBLISHED[row].batch_size)
    assert scale.factor == 1.0
    assert scale.forward_epochs == FORWARD_PASS_EPOCHS
    assert scale.apply(LATENCY_MS[row]) == LATENCY_MS[row]
    assert (scale.batch_factors(np.arange(1, 50)) == 1.0).all()


@given(costs)
def test_the_same_cost_has_the_factor_one(cost: BatchCost) -> None:
    assert cost.factor(cost) == 1.0


@given(costs, sizes, costs)
def test_a_larger_batch_takes_longer_but_less_per_sample(cost: BatchCost, more: int, reference: BatchCost) -> None:
    larger = replace(cost, batch_size=cost.batch_size + more)
    before, after = cost.factor(reference), larger.factor(reference)
    assert after > before or after == pytest.approx(before)
    assert after / larger.batch_size <= before / cost.batch_size * (1 + 1e-9)


@given(rows, st.integers(10, 1000))
def test_a_larger_batch_saves_at_most_the_fixed_share_per_sample(row: str, size: int) -> None:
    scale = LatencyScale.published(row, size, 10)
    assert scale.factor / (size / 10) >= 1 - FIXED_SHARE


@given(costs, costs)
def test_a_forward_pass_costs_its_share_of_the_flops(cost: BatchCost, reference: BatchCost) -> None:
    scale = replace(LatencyScale.estimated(cost), reference=reference)
    assert scale.forward_epochs == cost.forward_flops / cost.train_flops
    assert replace(scale, basis="published").forward_epochs == FORWARD_PASS_EPOCHS


@given(sizes, st.integers(1, 100), st.integers(1, 2000))
def test_an_epoch_of_larger_batches_costs_the_same_samples(batch_size: int, reference: int, samples: int) -> None:
    """No epoch costs less than its samples, and none more than its whole batches."""
    scale = LatencyScale.measured(batch_size, reference)
    (share,) = scale.batch_factors(np.array([samples])).tolist()
    assert share <= 1 + 1e-9
    batches = batches_per_epoch(samples, batch_size)
    epoch = share * scale.factor * batches
    least = FIXED_SHARE * batches + (1 - FIXED_SHARE) * samples / reference
    unit = (1 - FIXED_SHARE) * max(1.0, min(batch_size, reference) / reference)
    assert least * (1 - 1e-9) <= epoch <= least + unit + 1e-9 * epoch


@given(st.integers(11, 200), st.integers(0, 2000))
def test_batches_that_are_never_short_are_whole(batch_size: int, more: int) -> None:
    """An epoch that drops its short batch, or that ends after one batch."""
    scale, samples = LatencyScale.published("har", batch_size), batch_size + more
    for batches in (batches_per_epoch(samples, batch_size, drop_last=True), 1):
        assert scale.batch_factors(np.array([samples]), np.array([batches])).tolist() == [pytest.approx(1.0)]


@given(costs, sizes, sizes)
def test_the_manifest_holds_the_whole_scale(cost: BatchCost, size: int, reference: int) -> None:
    for scale in (
        LatencyScale.estimated(cost), LatencyScale.measured(size, reference), LatencyScale.published("har", size),
        LatencyScale.published("shakespeare", size, reference),
    ):  # fmt: skip
        assert LatencyScale.from_json(json.loads(json.dumps(scale.to_json()))) == scale


def test_flops_that_were_not_counted_are_not_in_the_manifest() -> None:
    content = LatencyScale.measured(10, 5).to_json()
    assert content["cost"] == {"train_flops": None, "forward_flops": None, "batch_size": 10}
    assert (content["basis"], content["row"], content["factor"]) == ("measured", "custom", pytest.approx(1.9))


def test_the_fixed_share_lies_within_what_the_published_rows_allow() -> None:
    """The two LSTMs differ in batch size; the ratio of their seconds per FLOP determines the share of a class."""
    few, many = PUBLISHED["reddit"], PUBLISHED["shakespeare"]
    sizes = many.batch_size / few.batch_size
    shares = []
    for name in ("slow", "mid", "fast"):
        ratio = LATENCY_MS["shakespeare"][name][0] / LATENCY_MS["reddit"][name][0] * few.train_flops / many.train_flops
        shares.append((sizes - ratio) / (sizes - 1))
    assert [round(share, 2) for share in shares] == [0.42, 0.18, -0.16]
    assert min(shares) < FIXED_SHARE < np.mean(shares) < max(shares)


@given(costs, costs)
def test_no_model_is_free(cost: BatchCost, reference: BatchCost) -> None:
    least = replace(cost, train_flops=0.0, forward_flops=0.0)
    assert 0 < least.factor(reference) <= cost.factor(reference)
    assert least.forward_epochs == FORWARD_PASS_EPOCHS


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-1.0, 1.0, 10), "train_flops = -1.0 must be"),
        ((1.0, float("nan"), 10), "forward_flops = nan must be"),
        ((1.0, 1.0, 0), "batch_size = 0 must be at least 1"),
    ],
)
def test_a_cost_that_cannot_be_is_refused(values: tuple[float, float, int], text: str) -> None:
    with pytest.raises(BadSetting, match=text):
        BatchCost(*values)


def test_a_reference_without_work_is_refused() -> None:
    cost = BatchCost(3.0, 1.0, 10)
    with pytest.raises(BadSetting, match="no FLOPs"):
        cost.factor(replace(cost, train_flops=0.0))
