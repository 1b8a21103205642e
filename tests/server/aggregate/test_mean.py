"""Weighted means: FedAvg, FedNova, q-FFL and signSGD's majority vote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_report, make_setup, make_state, same
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbalancer.core.types import ClientReport, ServerState
from fedbalancer.privacy.central import PrivateMean
from fedbalancer.server.aggregate import (
    QFFL,
    CheckedUpdates,
    ExtrapolatedMomentum,
    FedAdagrad,
    FedAdam,
    FedExP,
    FedNova,
    FedYogi,
    Krum,
    MajorityVote,
    Median,
    ServerMomentum,
    TrimmedMean,
    WeightedMean,
)
from fedbalancer.server.aggregate.mean import CHUNK, local_steps, mean_update
from fedbalancer.testing import check_policy

values = st.floats(-100, 100, width=32)


@st.composite
def rounds(draw: Callable[..., Any]) -> tuple[ServerState, list[ClientReport]]:
    size, count = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    vectors = draw(arrays(np.float32, (count + 1, size), elements=values))
    weights = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    reports = [make_report(f"c{i}", vectors[i].tolist(), float(weights[i])) for i in range(count)]
    return make_state(weights=vectors[-1]), reports


@given(rounds())
def test_equals_the_formula_in_double_precision(world: tuple[ServerState, list[ClientReport]]) -> None:
    state, reports = world
    with Unchanged(state, reports):
        actual, remembered = WeightedMean().aggregate(make_setup(), state, reports)
    assert remembered is None
    clients = np.array([report.update for report in reports], dtype=np.float64) + state.weights
    wanted = np.average(clients, axis=0, weights=[report.weight for report in reports])
    assert actual.dtype == np.float32
    assert actual == pytest.approx(wanted, rel=1e-6, abs=1e-4)


@given(rounds(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_byte(world: tuple[ServerState, list[ClientReport]], random: Any) -> None:
    state, reports = world
    shuffled = random.sample(reports, len(reports))
    policy = WeightedMean()
    first, second = (policy.aggregate(make_setup(), state, order)[0] for order in (reports, shuffled))
    assert first.tobytes() == second.tobytes()


SUMS = [
    WeightedMean(), ServerMomentum(), FedExP(), ExtrapolatedMomentum(), FedAdam(), FedYogi(), FedAdagrad(),
    MajorityVote(), PrivateMean(),
]  # fmt: skip


@pytest.mark.parametrize("policy", SUMS, ids=lambda policy: type(policy).__name__)
@given(world=rounds())
def test_a_fold_of_one_report_after_the_other_has_the_same_bytes(
    policy: Any, world: tuple[ServerState, list[ClientReport]]
) -> None:
    state, reports = world
    state = replace(state, aggregate=policy.init(make_setup()))
    fold = policy.fold(make_setup(), state)
    for report in reports:
        fold.add(report)
    assert same(fold.finish(), policy.aggregate(make_setup(), state, reports[::-1]))


def test_a_fold_of_more_weights_than_a_chunk_has_the_same_bytes() -> None:
    rng = np.random.default_rng(0)
    reports = [
        make_report(f"c{i}", rng.normal(size=2 * CHUNK + 7).astype(np.float32).tolist(), 1.0 + i) for i in range(3)
    ]
    state = make_state(weights=rng.normal(size=2 * CHUNK + 7).astype(np.float32))
    fold = WeightedMean().start(make_setup(), state)
    for report in reports:
        fold.add(report)
    assert same(fold.finish(), WeightedMean().aggregate(make_setup(), state, reports))


class Halved(WeightedMean):
    """Computes something else of all reports."""

    def aggregate(self, setup: Any, state: ServerState, reports: Any) -> Any:
        weights, own = super().aggregate(setup, state, reports)
        return weights / 2, own


class Suspicious(WeightedMean):
    """Compares the updates of a round."""

    def cohort_faults(self, state: ServerState, reports: Any) -> Any:
        return {report.client: "long" for report in reports if abs(report.update).max() > 9}


@pytest.mark.parametrize(
    "policy", [Halved(), Suspicious(), CheckedUpdates(), Median(), TrimmedMean(), Krum(), FedNova(), QFFL()]
)
def test_policies_that_need_all_updates_have_no_fold(policy: Any) -> None:
    state = make_state(weights=np.zeros(2, dtype=np.float32))
    assert policy.fold(make_setup(), state) is None


def test_clients_count_by_their_samples_and_not_by_their_epochs() -> None:
    reports = [make_report("a", [1.0, 0.0], 30.0), make_report("b", [0.0, 4.0], 10.0)]
    state = make_state(weights=np.array([1.0, 2.0], dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, reports)[0].tolist() == [1.75, 3.0]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_arrival_does_not_matter_even_where_rounding_does(order: tuple[int, ...]) -> None:
    reports = [make_report("a", [2.0**60], 1.0), make_report("b", [1.0], 1.0), make_report("c", [-(2.0**60)], 1.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, [reports[i] for i in order])[0].tolist() == [0.0]


def test_weighs_in_double_precision() -> None:
    reports = [make_report("a", [1 + 2.0**-23], 3.0), make_report("b", [-1.0], 3.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, reports)[0].tolist() == [2.0**-24]


def test_sums_in_double_precision() -> None:
    big = [make_report("a", [2.0**25], 1.0), make_report("b", [1.0], 1.0), make_report("c", [-(2.0**25)], 1.0)]
    state = make_state(weights=np.zeros(1, dtype=np.float32))
    assert WeightedMean().aggregate(make_setup(), state, big)[0].tolist() == [np.float32(1 / 3)]


def report(client: str, update: list[float], trained: int, epochs: float) -> ClientReport:
    base = make_report(client, update, 1.0)
    return replace(base, epochs=epochs, summary=replace(base.summary, trained=trained))


def test_keeps_the_contract() -> None:
    assert check_policy(FedNova()) == "aggregate"


def test_steps_are_the_batches_behind_a_report() -> None:
    setup = replace(make_setup(), batch_size=10)
    assert local_steps(setup, report("a", [0.0], trained=95, epochs=3.0)) == 30
    assert local_steps(setup, report("a", [0.0], trained=40, epochs=0.4)) == 4  # stopped in the first epoch
    assert local_steps(setup, report("a", [0.0], trained=100, epochs=1.5)) == 15


def test_who_does_more_steps_pulls_no_harder() -> None:
    setup, state = replace(make_setup(), batch_size=10), make_state(weights=np.zeros(2, dtype=np.float32))
    diligent, quick = report("a", [3.0, 0.0], 300, 1.0), report("b", [0.0, 1.0], 100, 1.0)
    actual, own = FedNova().aggregate(setup, state, [diligent, quick])
    assert own is None
    assert actual == pytest.approx([1.0, 1.0])  # 20 steps on average, each along the mean direction
    equal = [report("a", [3.0, 1.0], 100, 1.0), report("b", [0.0, 1.0], 100, 1.0)]
    mean, _ = WeightedMean().aggregate(setup, state, equal)
    assert FedNova().aggregate(setup, state, equal)[0] == pytest.approx(mean)


SETUP = make_setup(learning_rate=0.1)


def qffl_report(client: str, update: list[float], loss: float, weight: float = 1.0) -> ClientReport:
    base = make_report(client, update, weight)
    return replace(base, summary=replace(base.summary, loss_sum=4 * loss, loss_count=4.0))


@given(st.lists(st.tuples(st.floats(-5, 5, width=32), st.floats(0.01, 10), st.floats(1, 500)), min_size=1, max_size=6))
def test_q_0_is_the_plain_mean_of_the_updates_whatever_losses_and_samples(
    clients: list[tuple[float, float, float]],
) -> None:
    reports = [qffl_report(f"c{i}", [update, 0.0], loss, n) for i, (update, loss, n) in enumerate(clients)]
    weights, _ = QFFL(q=0).aggregate(SETUP, make_state(), reports)
    assert weights[0] == pytest.approx(np.mean([update for update, _, _ in clients]), rel=1e-5, abs=1e-6)


def test_one_client_by_hand() -> None:
    # L = 10, g = -10 * (0.3, -0.4) with |g|^2 = 25; F = 2, q = 1: Delta = 2 g, h = 25 + 10 * 2 = 45.
    weights, _ = QFFL(q=1).aggregate(SETUP, make_state(), [qffl_report("a", [0.3, -0.4], 2.0)])
    assert weights == pytest.approx(2 * 10 * np.array([0.3, -0.4]) / 45, rel=1e-5)


def test_the_higher_q_the_more_a_high_loss_counts() -> None:
    reports = [qffl_report("easy", [1.0, 0.0], 0.1), qffl_report("hard", [0.0, 1.0], 3.0)]
    shares = []
    for q in (0.0, 0.5, 1.0, 2.0):
        weights, _ = QFFL(q=q).aggregate(SETUP, make_state(), reports)
        shares.append(float(weights[1] / weights.sum()))
    assert shares[0] == pytest.approx(0.5)
    assert shares == sorted(shares)
    assert shares[-1] > 0.99


@pytest.mark.parametrize("loss", [0.0, -0.3])
def test_a_loss_that_noise_made_negative_gives_no_infinity(loss: float) -> None:
    weights, _ = QFFL(q=0.5).aggregate(
        SETUP, make_state(), [qffl_report("a", [1.0, 2.0], loss), qffl_report("b", [0.5, 0], 1.0)]
    )
    assert np.isfinite(weights).all()


def test_every_client_has_one_vote_and_a_tie_moves_nothing() -> None:
    reports = [make_report("a", [1e9, 1.0], 1e9), make_report("b", [-1e-9, 1.0], 1.0), make_report("c", [0.0, -1.0], 1)]
    weights, _ = MajorityVote(step=0.5).aggregate(make_setup(), make_state(), reports)
    assert weights.tolist() == [0.0, 0.5]


def test_the_step_is_the_learning_rate_unless_given() -> None:
    weights, _ = MajorityVote().aggregate(
        make_setup(learning_rate=0.03), make_state(), [make_report("a", [2.0, -7.0], 1.0)]
    )
    assert weights == pytest.approx([0.03, -0.03])


def test_each_parameter_is_averaged_over_the_clients_that_trained_it() -> None:
    whole = make_report("c0", [1.0, 2.0, 3.0], 10.0)
    part = replace(make_report("c1", [4.0, 0.0, 0.0], 30.0), part=np.array([True, False, False]))
    nobody = replace(make_report("c2", [4.0, 5.0, 0.0], 20.0), part=np.array([True, True, False]))
    assert mean_update([part, whole]).tolist() == [(10 + 120) / 40, 2.0, 3.0]
    assert mean_update([nobody, part]).tolist() == [(120 + 80) / 50, 5.0, 0.0]
