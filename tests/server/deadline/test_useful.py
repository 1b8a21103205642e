"""The deadline with the most useful work per second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import STEP_BINS
from fedbalancer.methods.table import method
from fedbalancer.server.deadline import LearnedWork, LimitedDeadline, UsefulWork
from fedbalancer.server.deadline.useful import (
    POWERS,
    LearnedState,
    UsefulState,
    mean_prior_steps,
    update_estimate,
    useful_deadline,
)
from fedbalancer.testing import check_policy

seconds = st.floats(0.05, 500)


def test_keeps_the_contract() -> None:
    assert check_policy(UsefulWork()) == "deadline"


@settings(max_examples=50)
@given(
    st.lists(st.tuples(seconds, st.floats(0.01, 20), st.integers(1, 400)), min_size=1, max_size=12),
    st.floats(0, 60), st.floats(0.05, 0.95),
)  # fmt: skip
def test_no_other_deadline_is_much_better(
    clients: list[tuple[float, float, int]], overhead_s: float, gamma: float
) -> None:
    network_s, batch_s, most = (np.array(column, dtype=float) for column in zip(*clients, strict=True))

    def rate(deadline_s: float) -> float:
        done = np.minimum((deadline_s - network_s) / batch_s + 1e-9, most)
        return float((np.maximum(done, 0)[done >= 1] ** gamma).sum() / (deadline_s + overhead_s))

    actual = useful_deadline(network_s, batch_s, most, overhead_s, gamma)
    longest = float((network_s + batch_s * most).max())
    assert (network_s + batch_s).min() <= actual <= longest + 1e-6
    assert rate(actual) >= 0.97 * max(rate(t) for t in np.linspace(0.01, 1.2 * longest, 2000))


def test_rounds_are_longer_where_they_cost_more_anyway_and_where_batches_keep_their_worth() -> None:
    one = (np.array([10.0]), np.array([0.1]), np.array([1e6]))
    assert useful_deadline(*one, 20.0, 0.5) == pytest.approx(40, rel=0.05)
    assert useful_deadline(*one, 80.0, 0.5) == pytest.approx(100, rel=0.05)
    assert useful_deadline(*one, 20.0, 0.75) == pytest.approx(100, rel=0.05)


def test_nobody_is_waited_for_who_has_nothing_left_to_do() -> None:
    assert useful_deadline(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([3.0, 4.0]), 1e6, 0.9) == 6.0


def test_the_window_is_measured_and_a_round_without_a_report_doubles_the_deadline() -> None:
    setup = make_setup(make_ledger([1000, 1000], network_s=[10.0, 10.0]))
    policy = UsefulWork()
    state = make_state(ledger=setup.ledger, deadline=policy.init(setup))
    cohort = np.array([0, 1])
    before, quorum = policy.plan(setup, state, cohort)
    assert quorum == 2
    failed = replace(make_result(missing=["c0", "c1"]), window_s=20.0)
    for times in (2, 4):
        state = replace(state, deadline=policy.observe(setup, state, failed))
        patient, _ = policy.plan(setup, replace(state, deadline=replace(state.deadline, failed=0)), cohort)
        assert patient > before
        assert policy.plan(setup, state, cohort)[0] == times * patient
    state = replace(state, deadline=policy.observe(setup, state, make_result([make_report("c0", [1.0], 1.0)])))
    assert state.deadline == UsefulState(window_s=make_result().window_s, failed=0)


def test_a_cohort_of_nobody_is_no_error() -> None:
    setup = make_setup()
    policy = UsefulWork()
    assert policy.plan(setup, make_state(deadline=policy.init(setup)), np.array([], dtype=np.int64))[1] == 0


def make_released(gamma: float, steps: int, level: float = 3.0, seed: int = 0, noise: float = 0.1) -> tuple[float, ...]:
    """The release of a client with ten new samples in each step, whose losses fall by this power."""
    rng = np.random.default_rng(seed)
    counts, sums, sumsq = np.zeros((3, STEP_BINS))
    for step in range(steps):
        losses = level - 0.2 * step**gamma + rng.normal(0, noise, 10)
        kind = min(int(np.log2(step + 1)), STEP_BINS - 1)
        counts[kind], sums[kind] = counts[kind] + 10, sums[kind] + losses.sum()
        sumsq[kind] += (losses**2).sum()
    return (*counts.tolist(), *sums.tolist(), *sumsq.tolist())


def after(rounds: list[list[tuple[float, ...]]]) -> LearnedState:
    state = LearnedState()
    for each in rounds:
        state = update_estimate(state, each, 10)
    return state


def test_learned_keeps_the_contract() -> None:
    assert check_policy(LearnedWork()) == "deadline"


@settings(max_examples=25, deadline=None)
@given(st.floats(0.15, 0.85), st.lists(st.tuples(st.integers(3, 60), st.floats(1, 9)), min_size=4, max_size=8))
def test_the_power_is_found_whatever_the_level_of_each_client_and_however_far_it_got(
    gamma: float, clients: list[tuple[int, float]]
) -> None:
    far = [*clients, (60, 5.0)]
    seen = after(
        [[make_released(gamma, *client, seed=place * 9 + r) for place, client in enumerate(far)] for r in range(9)]
    )
    assert seen.power == pytest.approx(gamma, abs=0.12)


def test_without_evidence_it_is_canters_own_power_and_weak_evidence_moves_it_little() -> None:
    assert LearnedState().power == after([[(0.0,) * (3 * STEP_BINS)]]).power == 0.5
    clear, drowned = (after([[make_released(0.1, 40, noise=noise)]]).power for noise in (0.05, 20.0))
    assert clear < 0.3
    assert abs(drowned - 0.5) < 0.1


def test_early_rounds_are_forgotten() -> None:
    def rounds(gamma: float, count: int) -> list[list[tuple[float, ...]]]:
        return [[make_released(gamma, 40, seed=r)] for r in range(count)]

    assert after(rounds(0.8, 20) + rounds(0.2, 20)).power < 0.3
    assert after(rounds(0.2, 20) + rounds(0.8, 20)).power > 0.7


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3 * STEP_BINS, max_size=3 * STEP_BINS), max_size=4))
def test_whatever_is_told_the_power_stays_in_its_bounds(nonsense: list[list[float]]) -> None:
    assert POWERS[0] - 1e-9 <= after([[tuple(each) for each in nonsense]]).power <= POWERS[-1] + 1e-9


def test_the_deadline_is_that_of_the_power_it_found() -> None:
    setup = make_setup(make_ledger([4000, 4000], network_s=[10.0, 10.0]))
    cohort, policy = np.array([0, 1]), LearnedWork()
    state = make_state(ledger=setup.ledger, deadline=policy.init(setup))
    deadlines = []
    for gamma in (0.2, 0.8):
        now = state
        for seed in range(12):
            reports = [
                make_report(f"c{k}", [1.0], released=make_released(gamma, 40, seed=seed * 2 + k)) for k in range(2)
            ]
            now = replace(now, deadline=policy.observe(setup, now, make_result(reports, window_s=20.0)))
        assert now.deadline.useful.window_s == 20.0
        plain = UsefulWork(now.deadline.power)
        expected = plain.plan(setup, replace(now, deadline=now.deadline.useful), cohort)
        assert policy.plan(setup, now, cohort) == expected
        deadlines.append(expected[0])
    assert deadlines[0] < deadlines[1] / 2


@given(st.integers(1, 3000), st.integers(1, 12))
def test_the_middles_are_those_of_the_steps_that_a_client_did(steps: int, batch_size: int) -> None:
    kinds = np.minimum(np.log2(np.arange(steps) + 1).astype(int), STEP_BINS - 1)
    counts = np.bincount(kinds, minlength=STEP_BINS)[None] * float(batch_size)
    true = [float(np.flatnonzero(kinds == k).mean()) for k in range(kinds[-1] + 1)]
    assert mean_prior_steps(counts, batch_size)[0, : len(true)].tolist() == true


def test_it_takes_a_summary_that_tells_of_steps() -> None:
    with pytest.raises(BadSetting, match="summary=LossesBySteps"):
        method("canter[deadline=LearnedWork]")
    with pytest.raises(BadSetting, match="Silent reports nothing about single steps"):
        method("fedavg+1t+silent+learned")
    robust = method("canter+learned+robust")
    assert robust.deadline == LimitedDeadline(LearnedWork())
