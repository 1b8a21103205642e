"""Every class of a client keeps a share of the selection."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import Unchanged, make_order
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.policies import ClientPolicies, bind_labels
from fedbalancer.client.samples import ClassFloor, OverThreshold
from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import FloatArray, IndexArray
from fedbalancer.data import load_task
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.methods.table import method
from fedbalancer.testing import check_policy

SIZE = 120
LABELS = np.repeat([0, 3, 7], [20, 40, 60])
LOSSES = np.where(LABELS == 0, 0.1, np.where(LABELS == 3, 0.5, 2.0))
"""The model knows class 0 best, and class 7 least."""


def select(floor: float, fits: int = 60, losses: FloatArray = LOSSES, p: float = 1.0, seed: int = 0) -> IndexArray:
    order = make_order(deadline_s=5.0 * (fits // 10) + 0.5, loss_threshold=1.0)
    with Unchanged(losses, LABELS):
        chosen = ClassFloor(p, floor).of_labels(LABELS).select(SIZE, losses, 1.0, order, np.random.default_rng(seed))
    assert chosen is not None
    return chosen


def counts(chosen: IndexArray) -> list[int]:
    return [int((LABELS[chosen] == label).sum()) for label in (0, 3, 7)]


def test_it_keeps_the_contract_of_its_slot() -> None:
    check_policy(ClassFloor())
    check_policy(ClassFloor(0.75, 1.0))


def test_a_class_that_the_model_knows_stays_in_with_its_floor() -> None:
    assert counts(select(floor=0.0)) == [0, 0, 60]
    assert counts(select(floor=0.5)) == [5, 10, 45]
    assert counts(select(floor=1.0)) == [10, 20, 30]


@given(st.floats(0, 1), st.floats(0.5, 1), st.integers(0, 12), st.integers(0, 5))
def test_no_class_is_under_its_floor_and_rounding_adds_less_than_a_sample_a_class(
    floor: float, p: float, tens: int, seed: int
) -> None:
    losses = np.random.default_rng(seed).exponential(size=SIZE)
    chosen = select(floor, 10 * tens, losses, p, seed)
    usual = max(10 * tens, int((losses >= 1.0).sum()))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert usual <= len(chosen) < usual + 3
    for count, label in zip(counts(chosen), (0, 3, 7), strict=True):
        assert count >= math.floor(floor * usual * (label == LABELS).mean() + 1e-9)


def test_every_sample_of_a_class_may_be_the_one_that_stays() -> None:
    seen = {sample for seed in range(60) for sample in select(0.5, seed=seed) if LABELS[sample] == 0}
    assert seen == set(range(20))


def test_labels_that_are_no_classes_are_refused() -> None:
    for labels in (np.zeros((4, 2), dtype=np.int64), np.zeros(4)):
        with pytest.raises(BadSetting, match="requires one class label per sample"):
            ClassFloor().of_labels(labels)
    with pytest.raises(BadSetting, match=r"floor = .* must be a number >= 0 and <= 1"):
        ClassFloor(floor=1.5)


def test_only_a_policy_that_asks_for_labels_is_given_them() -> None:
    def never() -> list[int]:
        raise AssertionError("nobody asked")

    plain = ClientPolicies(samples=OverThreshold())
    assert bind_labels(plain, never) is plain
    assert bind_labels(plain, None) is plain
    with pytest.raises(BadSetting, match="ClassFloor needs the client's labels"):
        bind_labels(ClientPolicies(samples=ClassFloor()), None)


def test_a_simulated_client_selects_by_its_own_labels() -> None:
    task = load_task("synthetic", users=6)
    world = build(RunSpec(task="synthetic", method="fedbalancer+classfloor", users=6), task)
    client = world.engine.ledger.clients[0]
    made = world.engine._client_round(make_order(), client, 0)
    assert np.array_equal(made.policies.samples.labels, task.clients[client][1])  # type: ignore[attr-defined]


def test_the_modifier_takes_the_place_of_algorithm_1_and_of_every_sample() -> None:
    assert method("canter+classfloor").samples == ClassFloor(0.75)
    assert method("fedavg+1t+classfloor").samples == ClassFloor(1.0)
    assert method("canter+classfloor").server == method("canter").server
    with pytest.raises(BadSetting, match="HighestLoss selects samples by another rule"):
        method("sampleselection+classfloor")
    with pytest.raises(BadSetting, match="Trimmed selects samples by another rule"):
        method("canter+trimmed+classfloor")
