"""`AutoRate`: the rate that it finds, what bounds it, and that nothing depends on order, process or resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_setup, make_state, names, same
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import STEP_BINS, ClientReport, ServerState, Setup
from fedbalancer.methods.table import method
from fedbalancer.server.aggregate import AutoRate, CheckedUpdates, ExtrapolatedMomentum, WeightedMean
from fedbalancer.server.aggregate.rate import (
    BACK,
    MOST_FACTOR,
    MOST_MOVE,
    SKETCH,
    agreement,
    diverged,
    loss_fall,
    rate_trend,
    sketch,
)
from fedbalancer.store.codec import decode_state, encode_state
from fedbalancer.testing import check_policy

SIZE, CLIENTS, STEPS, TASK_RATE = 20, 10, 8, 0.01
CURVATURE = np.geomspace(0.05, 1.0, SIZE)
LEDGER = make_ledger([100] * CLIENTS)
Change = Callable[[ClientReport], ClientReport]


def setup_of(seed: int = 0) -> Setup:
    return make_setup(LEDGER, seed=seed, learning_rate=TASK_RATE)


def optima(unlike: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    common = 3 * rng.normal(size=SIZE)
    return {client: common + unlike * rng.normal(size=SIZE) for client in names(CLIENTS)}


def train(client: str, model: np.ndarray, rate: float, own: np.ndarray, number: int) -> ClientReport:
    """The report of a client with a quadratic loss and noisy gradients; its losses are of a sample per step."""
    rng = np.random.default_rng([number, int(client[1:])])
    x, losses = model.astype(np.float64), []
    for _ in range(STEPS):
        losses.append(0.5 * float(CURVATURE @ (x - own) ** 2) + 0.1)
        x = x - rate * (CURVATURE * (x - own) + 0.05 * rng.normal(size=SIZE))
    sums = np.zeros((3, STEP_BINS))
    for step, loss in enumerate(losses):
        sums[:, math.frexp(step + 1)[1] - 1] += [5, 5 * loss, 5 * loss**2]
    return make_report(client, np.clip(x - model, -1e6, 1e6).tolist(), released=tuple(sums.ravel().tolist()))


def play(
    policy: Any, rounds: int, start: float = 1.0, unlike: float = 0.3, lie: Change | None = None, seed: int = 0
) -> list[float]:
    """The common rate before every round; the task's rate is off by `start`. c0 may lie."""
    setup = replace(setup_of(seed), learning_rate=TASK_RATE * start)
    state = replace(make_state(LEDGER, weights=np.zeros(SIZE, dtype=np.float32)), aggregate=policy.init(setup), round=0)
    own, rates = optima(unlike), []
    for number in range(rounds):
        factors = policy.client_rates(setup, state, names(CLIENTS))
        rates.append(float(setup.rate_in(1)) * math.exp(find_state(state).log_factor))
        reports = [
            train(client, state.weights, TASK_RATE * start * factors[client], own[client], number)
            for client in names(CLIENTS)
        ]
        reports[0] = reports[0] if lie is None else lie(reports[0])
        weights, kept = policy.aggregate(setup, state, reports)
        state = replace(state, weights=weights, aggregate=kept, round=number + 1)
    return rates


def find_state(state: ServerState) -> Any:
    own = state.aggregate
    return own if hasattr(own, "log_factor") else own.inner


def rounds_at(rate: float, unlike: float = 0.3) -> int:
    """Rounds of plain averaging at a constant rate until the model is near the best one."""
    own, model = optima(unlike), np.zeros(SIZE)
    best = np.mean(list(own.values()), axis=0)
    for number in range(120):
        gap = float(CURVATURE @ (model - best) ** 2) / float(CURVATURE @ best**2)
        if not gap < 1e6:
            break
        if gap < 0.02:
            return number
        model = model + np.mean([train(c, model, rate, own[c], number).update for c in own], axis=0)
    return 120


@cache
def good_rates(unlike: float) -> tuple[float, float]:
    """The smallest and the largest rate that need at most about twice the rounds of the best one."""
    rounds = {rate: rounds_at(rate, unlike) for rate in (TASK_RATE * np.geomspace(0.3, 300, 10)).tolist()}
    good = [rate for rate, count in rounds.items() if count <= 2 * min(rounds.values()) + 2]
    return min(good), max(good)


@cache
def honest_rate(robust: bool) -> float:
    return play(protected(robust), 15)[-1]


def protected(robust: bool) -> Any:
    return CheckedUpdates(AutoRate()) if robust else AutoRate()


class TestContract:
    @pytest.mark.parametrize("inner", [WeightedMean(), ExtrapolatedMomentum()])
    def test_keeps_the_contract_alone_and_wrapped(self, inner: Any) -> None:
        assert check_policy(AutoRate(inner)) == "aggregate"
        assert check_policy(CheckedUpdates(AutoRate(inner))) == "aggregate"

    def test_a_state_is_saved_exactly(self) -> None:
        policy, setup = AutoRate(), setup_of()
        fresh = replace(make_state(LEDGER, weights=np.zeros(SIZE, dtype=np.float32)), aggregate=policy.init(setup))
        reports = [train(client, fresh.weights, 0.1, own, 0) for client, own in optima(0.3).items()]
        weights, kept = policy.aggregate(setup, fresh, reports)
        state = replace(fresh, weights=weights, aggregate=kept)
        assert same(decode_state(*encode_state(state), fresh).aggregate, state.aggregate)

    def test_rates_are_drawn_per_client_and_round_and_do_not_depend_on_the_others(self) -> None:
        policy, setup = AutoRate(spread=3.0), setup_of()
        state = replace(make_state(LEDGER), aggregate=policy.init(setup))
        everybody = policy.client_rates(setup, state, names(CLIENTS))
        assert policy.client_rates(setup, state, ["c4"])["c4"] == everybody["c4"]
        assert len(set(everybody.values())) == CLIENTS
        assert all(1 / 3 <= rate / policy.first <= 3 for rate in everybody.values())
        assert policy.client_rates(setup, replace(state, round=9), ["c4"])["c4"] != everybody["c4"]

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("fedbuff", "Buffered has none"), ("fedavg+1t+signsgd", "signs only"), ("heterofl", "part HeteroFL"),
            ("scaffold", "ScaffoldServer only"),
        ],
    )  # fmt: skip
    def test_refuses_what_it_cannot_compare_by_name(self, name: str, why: str) -> None:
        with pytest.raises(BadSetting, match=why):
            method(f"{name}+autorate")

    def test_wraps_what_later_modifiers_choose_and_is_wrapped_by_robust(self) -> None:
        assert method("fedavg+1t+autorate+momentum").aggregate == AutoRate(method("fedavg+1t+momentum").aggregate)
        robust = method("canter+robust+autorate").aggregate
        assert isinstance(robust, CheckedUpdates)
        assert isinstance(robust.inner, AutoRate)


class TestFindsTheRate:
    @pytest.mark.parametrize("start", [0.1, 1.0, 10.0, 100.0])
    @pytest.mark.parametrize("unlike", [0.3, 3.0])
    def test_a_quadratic_model_converges_nearly_as_fast_as_at_the_best_rate(self, start: float, unlike: float) -> None:
        lowest, highest = good_rates(unlike)
        assert lowest / 2 <= play(AutoRate(), 25, start, unlike)[-1] <= 2 * highest

    def test_the_task_rate_does_not_matter_after_ten_rounds(self) -> None:
        found = [play(AutoRate(), 14, start)[-1] for start in (0.1, 1.0, 10.0)]
        assert max(found) / min(found) < 4


class TestBounds:
    @settings(max_examples=10, deadline=None)
    @given(scale=st.floats(-1e4, 1e4), falls=st.lists(st.floats(0, 1e6), min_size=36, max_size=36))
    def test_one_report_never_moves_the_rate_by_more_than_its_bound(self, scale: float, falls: list[float]) -> None:
        def lie(report: ClientReport) -> ClientReport:
            return replace(
                report, update=(report.update * scale).astype(np.float32),
                summary=replace(report.summary, released=tuple(falls)),
            )  # fmt: skip

        rates = np.log(play(AutoRate(), 4, lie=lie))
        assert np.abs(np.diff(rates)).max() <= MOST_MOVE + 1e-9

    @pytest.mark.parametrize("robust", [False, True])
    @pytest.mark.parametrize("scale", [-1.0, 3.0, 50.0, 0.0])
    @pytest.mark.parametrize("claim", [0.01, 100.0])
    def test_a_liar_among_ten_does_not_steer_it(self, robust: bool, scale: float, claim: float) -> None:
        def lie(report: ClientReport) -> ClientReport:
            sums = np.reshape(report.summary.released, (3, STEP_BINS)).copy()
            sums[1, 3:] *= claim
            return replace(
                report, update=report.update * np.float32(scale),
                summary=replace(report.summary, released=tuple(sums.ravel().tolist())),
            )  # fmt: skip

        assert 1 / 4 < play(protected(robust), 15, lie=lie)[-1] / honest_rate(robust) < 4

    def test_the_factor_has_a_bound(self) -> None:
        policy, setup = AutoRate(), setup_of()
        step = np.ones(SIZE, dtype=np.float32)
        own = replace(policy.init(setup), log_factor=math.log(MOST_FACTOR), step=step)
        state = replace(make_state(LEDGER, weights=0 * step), aggregate=own)
        reports = [make_report(client, step.tolist()) for client in names(CLIENTS)]
        assert policy.aggregate(setup, state, reports)[1].log_factor == math.log(MOST_FACTOR)

    def test_a_long_update_counts_at_most_twice_the_median(self) -> None:
        policy, setup = AutoRate(), setup_of()
        state = replace(make_state(LEDGER), aggregate=policy.init(setup))
        updates: Sequence[Sequence[float]] = [[1.0, 0.0]] * 3 + [[0.0, 1000.0]]
        reports = [make_report(f"c{place}", update) for place, update in enumerate(updates)]
        assert policy.aggregate(setup, state, reports)[0] == pytest.approx([0.75, 0.5])

    def test_too_few_or_only_late_reports_change_nothing(self) -> None:
        policy, setup = AutoRate(), setup_of()
        own = replace(policy.init(setup), step=np.ones(2, dtype=np.float32))
        state = replace(make_state(LEDGER), aggregate=own)
        few = [make_report("c0", [1.0, 1.0]), make_report("c1", [1.0, 1.0])]
        late = [replace(make_report(client, [1.0, 1.0]), staleness=2) for client in names(CLIENTS)]
        for reports in (few, late):
            assert policy.aggregate(setup, state, reports)[1].log_factor == own.log_factor


def with_losses(client: str, first: float, last: float, **changes: Any) -> ClientReport:
    """A report whose summary releases the losses of ten samples before training and of ten after it."""
    sums = np.zeros((3, STEP_BINS))
    sums[0, :2], sums[1, :2], sums[2, :2] = 10, [10 * first, 10 * last], [10 * first**2, 10 * last**2]
    return replace(make_report(client, [1.0, 1.0], released=tuple(sums.ravel().tolist())), **changes)


def rounds_of(policy: Any, losses: Sequence[Sequence[tuple[float, float]]], **changes: Any) -> list[ServerState]:
    """The server's state before and after every round, with the losses of every client before and after training."""
    setup = setup_of()
    states = [replace(make_state(LEDGER), aggregate=policy.init(setup))]
    for number, pairs in enumerate(losses):
        reports = [with_losses(f"c{place}", *pair, **changes) for place, pair in enumerate(pairs)]
        weights, kept = policy.aggregate(setup, states[-1], reports)
        states.append(replace(states[-1], weights=weights, aggregate=kept, round=number + 1))
    return states


LEARNING, DIVERGING = [[(2.0, 1.8)] * CLIENTS, [(1.0, 0.9)] * CLIENTS], [(1.0, 1.9)] * CLIENTS


class TestDivergence:
    def test_a_round_in_which_training_diverged_is_not_applied_and_lowers_the_factor(self) -> None:
        *_, before, after = rounds_of(AutoRate(ExtrapolatedMomentum()), [*LEARNING, DIVERGING])
        assert after.weights.tobytes() == before.weights.tobytes()
        assert same(after.aggregate.inner, before.aggregate.inner)
        assert after.aggregate.log_factor == pytest.approx(before.aggregate.log_factor - math.log(BACK))
        assert len(after.aggregate.step) == 0

    @pytest.mark.parametrize("lie", [(1.0, 0.5), (1.0, 1e6), (1e6, 1.0), (0.0, 0.0)])
    def test_a_liar_among_ten_neither_causes_nor_prevents_it(self, lie: tuple[float, float]) -> None:
        fine, bad = [lie, *LEARNING[1][1:]], [lie, *DIVERGING[1:]]
        *_, start, applied, discarded = rounds_of(AutoRate(), [[lie, *LEARNING[0][1:]], fine, bad])
        assert not np.array_equal(applied.weights, start.weights)
        assert np.array_equal(discarded.weights, applied.weights)

    @pytest.mark.parametrize(("length", "applied"), [(2.0, True), (100.0, False)])
    def test_without_losses_it_is_seen_from_updates_that_explode_after_a_rise(
        self, length: float, applied: bool
    ) -> None:
        policy, setup = AutoRate(), setup_of()
        states = [replace(make_state(LEDGER), aggregate=policy.init(setup))]
        for number, norm in enumerate([1.0, 1.0, length]):
            reports = [make_report(client, [norm, norm]) for client in names(CLIENTS)]
            weights, kept = policy.aggregate(setup, states[-1], reports)
            states.append(replace(states[-1], weights=weights, aggregate=kept, round=number + 1))
        *_, before, after = states
        assert np.array_equal(before.weights, after.weights) is not applied
        assert (after.aggregate.log_factor > before.aggregate.log_factor) is applied

    def test_late_losses_that_vary_by_a_multiple_are_not_divergence(self) -> None:
        rng = np.random.default_rng(0)
        late = np.exp(rng.normal(math.log(0.2), 1.0, size=(500, 5, 2)))
        known = np.concatenate([late, np.full((500, 5, 1), 0.01)], axis=2)
        assert sum(diverged(losses, 2.0) for losses in known) <= 5

    def test_a_rise_within_the_error_of_a_few_samples_is_not_divergence(self) -> None:
        losses = np.tile([2.0, 3.0, 0.1], (5, 1))
        assert diverged(losses, 2.2)
        assert not diverged(losses * [1, 1, 6], 2.2)

    @pytest.mark.parametrize("released", [False, True])
    def test_unknown_and_late_losses_do_not_count(self, released: bool) -> None:
        without: dict[str, Any] = {"staleness": 1} if released else {"summary": make_report().summary}
        *_, before, after = rounds_of(AutoRate(), [*LEARNING, DIVERGING], **without)
        assert math.isnan(after.aggregate.untrained)
        assert not np.array_equal(after.weights, before.weights)

    def test_a_start_from_which_training_diverges_is_left_without_a_change_of_the_model(self) -> None:
        assert play(AutoRate(), 14, start=3000.0)[-1] <= 2 * good_rates(0.3)[1]


class TestSignals:
    @settings(max_examples=20, deadline=None)
    @given(st.floats(0.1, 1.0), st.integers(3, 20))
    def test_the_same_gradient_with_noise_of_the_clients_is_straight(self, alike: float, count: int) -> None:
        rng = np.random.default_rng(count)
        common = rng.normal(size=10_000)
        noise = rng.normal(size=(2, count, 10_000)) * math.sqrt(1 / alike - 1)
        before, now = ((common + each) / np.linalg.norm(common + each, axis=1)[:, None] for each in noise)
        found, straight = agreement(now, before.mean(axis=0), np.full(count, math.nan))
        assert found == pytest.approx(alike, abs=0.05)
        assert straight == pytest.approx(1.0, abs=0.2)

    def test_a_turn_back_is_negative_and_no_agreement_says_nothing(self) -> None:
        step = np.array([1.0, 0.0])
        fresh = np.full(4, math.nan)
        assert agreement(np.array([[-1.0, 0.0]] * 4), step, fresh) == (1.0, -1.0)
        assert agreement(np.eye(2)[[0, 1, 0, 1]] * [[1], [1], [-1], [-1]], step, fresh)[1] == 0.0

    @settings(max_examples=20, deadline=None)
    @given(st.floats(0.0, 0.8), st.floats(0.3, 1.0), st.integers(4, 20), st.floats(0.3, 1.0))
    def test_the_same_gradient_is_straight_also_where_clients_repeat_a_part_of_their_own(
        self, alike: float, kept: float, count: int, repeat: float
    ) -> None:
        rng, size = np.random.default_rng(count), 20_000
        parts = rng.normal(size=(3, count, size)) * math.sqrt(1 - alike)
        own = np.stack([math.sqrt(kept) * parts[0] + math.sqrt(1 - kept) * each for each in parts[1:]])
        again = np.arange(count) < max(round(repeat * count), 2)
        own[1, ~again] = rng.normal(size=(int((~again).sum()), size)) * math.sqrt(1 - alike)
        before, now = math.sqrt(alike) * rng.normal(size=size) + own
        before, now = (each / np.linalg.norm(each, axis=1)[:, None] for each in (before, now))
        cosines = np.where(again, (sketch(before) * sketch(now)).sum(axis=1), math.nan)
        _, straight = agreement(now, before.mean(axis=0), cosines)
        if alike >= 0.1 or again.all():
            assert straight == pytest.approx(1.0, abs=0.3)

    @settings(max_examples=20, deadline=None)
    @given(st.floats(-1.0, 1.0), st.integers(1, 5000))
    def test_sketches_keep_cosines(self, cosine: float, size: int) -> None:
        first, other = np.random.default_rng(size).normal(size=(2, size))
        other -= (other @ first) / (first @ first) * first * (size > 1)
        first, other = (each / np.linalg.norm(each) for each in (first, other))
        second = cosine * first + math.sqrt(1 - cosine**2) * other if size > 1 else first * cosine
        both = sketch(np.stack([first, second]).astype(np.float32))
        assert both[0] @ both[1] == pytest.approx(cosine, abs=5 / math.sqrt(SKETCH))

    def test_where_the_same_unlike_clients_report_the_rate_falls_as_one_over_the_root_of_rounds(self) -> None:
        policy, setup = AutoRate(), setup_of()
        state = replace(make_state(LEDGER, weights=np.zeros(CLIENTS, dtype=np.float32)), aggregate=policy.init(setup))
        factors = []
        for number in range(200):
            factors.append(math.exp(state.aggregate.log_factor))
            reports = [make_report(client, np.eye(CLIENTS)[place]) for place, client in enumerate(names(CLIENTS))]
            weights, kept = policy.aggregate(setup, state, reports)
            state = replace(state, weights=weights, aggregate=kept, round=number + 1)
        assert factors == sorted(factors, reverse=True)
        assert factors[-1] / factors[49] == pytest.approx(math.sqrt(50 / 200), rel=0.05)

    def test_a_fall_is_of_the_last_over_the_first_losses(self) -> None:
        sums = np.zeros((3, STEP_BINS))
        sums[0, :3], sums[1, :3] = [10, 10, 2], [20, 10, 2]
        assert loss_fall(make_report(released=tuple(sums.ravel()))) == pytest.approx(math.log(1 / 2))
        assert math.isnan(loss_fall(make_report()))

    def test_unknown_falls_do_not_count(self) -> None:
        nan = math.nan
        assert rate_trend([1, 2, 3, 4], [nan, 3, 2, 1]) == -1.0
        assert rate_trend([1, 2, 3], [nan, 3, 2]) == rate_trend([1, 2, 3], [1, 1, 1]) == 0.0
