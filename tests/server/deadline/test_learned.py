"""The worth of further batches, learned from how losses fall while clients train."""

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
from fedbalancer.server.deadline.learned import POWERS, LearnedState, mean_prior_steps, update_estimate
from fedbalancer.testing import check_policy


def make_released(gamma: float, steps: int, level: float = 3.0, seed: int = 0, noise: float = 0.1) -> tuple[float, ...]:
    """What a client tells that met ten samples in each of so many steps, with losses that fall by this power."""
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


def test_keeps_the_contract() -> None:
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
