"""Algorithm 4: the deadline of peak efficiency."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from builders import heard, make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.types import IndexArray, Ledger, ServerState, Setup
from fedbalancer.server.deadline import PeakDeadline, interpolate, peak_deadline
from fedbalancer.server.deadline.peak import PeakState
from fedbalancer.server.pace import PaceState

times = st.lists(st.floats(0, 120, allow_subnormal=False), min_size=1, max_size=30)


def scan_over_seconds(completion: list[float]) -> tuple[float, float]:
    """FindPeakDDL-E as it is printed in the paper."""
    ddl_e: list[float] = []
    c, t = 0, 1
    while c != len(completion):
        c = 0
        for time in completion:
            if t >= time:
                c = c + 1
        ddl_e.append(c / t)
        t = t + 1
    best = ddl_e.index(max(ddl_e))
    return float(best + 1), ddl_e[best]


def ready(ledger: Ledger, ratio: float = 1.0, guard_s: float = 0.0) -> tuple[Setup, ServerState]:
    """All clients known, so that the gate is open."""
    ledger = replace(ledger, participations=np.ones(len(ledger.clients), dtype=np.int64))
    pace = PaceState(deadline_ratio=ratio)
    return make_setup(ledger), make_state(ledger, pace=pace, deadline=PeakState(77.0, guard_s))


def everybody(ledger: Ledger) -> IndexArray:
    return np.arange(len(ledger.clients))


class TestPeakDeadline:
    @given(times)
    def test_equals_the_papers_scan_over_seconds(self, completion: list[float]) -> None:
        assert peak_deadline(np.array(completion)) == scan_over_seconds(completion)

    @given(st.lists(st.floats(0.01, 120), min_size=1, max_size=30))
    def test_continuous_equals_brute_force_over_completion_times(self, completion: list[float]) -> None:
        done = {t: sum(time <= t for time in completion) / t for t in sorted(completion)}
        best = max(done, key=lambda t: done[t])
        assert peak_deadline(np.array(completion), "continuous") == (best, done[best])

    @given(times)
    def test_continuous_is_never_less_efficient_than_whole_seconds(self, completion: list[float]) -> None:
        above = [max(time, 1.0) for time in completion]
        assert peak_deadline(np.array(above), "continuous")[1] >= peak_deadline(np.array(above))[1]

    @pytest.mark.parametrize("grid", ["integer", "continuous"])
    def test_the_earliest_of_equals_wins(self, grid: Literal["integer", "continuous"]) -> None:
        assert peak_deadline(np.array([60.0, 20.0, 40.0]), grid) == (20.0, 1 / 20)
        assert peak_deadline(np.array([40.0, 40.0, 60.0]), grid) == (40.0, 2 / 40)

    def test_clients_of_one_second_are_counted_together(self) -> None:
        assert peak_deadline(np.array([2.1, 2.9, 3.0, 9.0])) == (3.0, 1.0)

    def test_leaves_its_argument_alone(self) -> None:
        completion = np.array([3.0, 1.0, 2.0])
        peak_deadline(completion)
        assert completion.tolist() == [3.0, 1.0, 2.0]

    def test_a_million_clients_finish(self) -> None:
        completion = np.random.default_rng(0).uniform(5, 600, 1_000_000)
        deadline, efficiency = peak_deadline(completion)
        assert efficiency == (completion <= deadline).sum() / deadline


class TestBounds:
    # Quarters and eighths of seconds: sums of them are exact, so a whole second is not missed by a rounding error.
    @given(st.lists(st.tuples(st.integers(1, 300), st.integers(4, 240), st.integers(1, 16)), min_size=1, max_size=12))
    def test_are_the_peaks_at_one_and_at_all_epochs(self, clients: list[tuple[int, int, int]]) -> None:
        ledger = make_ledger([n for n, _, _ in clients], [q / 4 for _, q, _ in clients], [e / 8 for _, _, e in clients])

        def peak(epochs: int) -> float:
            return scan_over_seconds([q / 4 + -(-n // 10) * e / 8 * epochs for n, q, e in clients])[0]

        assert PeakDeadline().bounds(*ready(ledger), everybody(ledger)) == (peak(1), peak(5))

    @given(st.floats(0, 1), st.integers(0, 100))
    def test_the_deadline_lies_between_them(self, ratio: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        network_s, batch_s = rng.uniform(1, 60, 20).tolist(), rng.uniform(0.1, 2, 20).tolist()
        ledger = make_ledger(rng.integers(1, 300, 20).tolist(), network_s, batch_s)
        setup, state = ready(ledger, ratio)
        policy = PeakDeadline()
        low, high = policy.bounds(setup, state, everybody(ledger))
        deadline_s, quorum = policy.plan(setup, state, everybody(ledger))
        assert min(low, high) - 1e-9 <= deadline_s <= max(low, high) + 1e-9
        assert deadline_s == pytest.approx(low + (high - low) * ratio)
        assert quorum == 20

    def test_ratio_one_is_the_deadline_for_all_epochs_and_zero_for_one(self) -> None:
        ledger = make_ledger([100, 100, 100])  # 10 batches of 1 s and 10 s of network
        assert PeakDeadline().plan(*ready(ledger, 1.0), everybody(ledger)) == (60.0, 3)
        assert PeakDeadline().plan(*ready(ledger, 0.0), everybody(ledger)) == (20.0, 3)
        assert PeakDeadline().plan(*ready(ledger, 0.25), everybody(ledger)) == (30.0, 3)

    def test_are_those_of_the_selected_clients_only(self) -> None:
        ledger = make_ledger([100, 100, 100], batch_s=[1.0, 1.0, 9.0])
        setup, state = ready(ledger)
        assert PeakDeadline().plan(setup, state, np.array([0, 1])) == (60.0, 2)
        assert PeakDeadline().plan(setup, state, np.array([2])) == (460.0, 1)

    def test_interpolation_is_the_papers_line_35(self) -> None:
        assert interpolate(20.0, 60.0, 0.25) == 30.0


class TestCounts:
    def test_recent_takes_the_mean_of_the_last_five_in_whole_batches(self) -> None:
        ledger = make_ledger([100])
        ledger = replace(ledger, recent_trained=np.array([[100.0, 100.0, 10.0, 10.0, 10.0]]))  # mean 46: 5 batches
        assert PeakDeadline().bounds(*ready(ledger), everybody(ledger)) == (15.0, 35.0)

    def test_over_takes_the_papers_real_valued_batches(self) -> None:
        ledger = heard(make_ledger([100]), [0], over_count=26.0)  # (26 - 1) / 10 = 2.5 batches
        policy = PeakDeadline(counts="over", grid="continuous")
        assert policy.bounds(*ready(ledger), everybody(ledger)) == (12.5, 22.5)

    def test_over_takes_all_samples_of_a_client_never_heard_of(self) -> None:
        ledger = make_ledger([101])
        policy = PeakDeadline(counts="over", grid="continuous")
        assert policy.bounds(*ready(ledger), everybody(ledger)) == (20.0, 60.0)

    @pytest.mark.parametrize("count", [1.0, 0.0, -3.5])
    def test_over_takes_no_negative_time_for_a_count_that_noise_pushed_down(self, count: float) -> None:
        ledger = heard(make_ledger([100]), [0], over_count=count)
        policy = PeakDeadline(counts="over", grid="continuous")
        assert policy.bounds(*ready(ledger), everybody(ledger)) == (10.0, 10.0)


class TestGate:
    @pytest.mark.parametrize(("known", "open_"), [(0, False), (3, False), (4, True), (6, True)])
    def test_opens_when_more_than_half_are_known(self, known: int, open_: bool) -> None:
        ledger = heard(make_ledger(), range(known))
        setup, state = make_setup(ledger), make_state(ledger, deadline=PeakState(77.0))
        deadline_s, quorum = PeakDeadline().plan(setup, state, np.array([0, 1]))
        assert (deadline_s, quorum) == ((60.0, 2) if open_ else (77.0, 2))

    @pytest.mark.parametrize(("known", "open_"), [(2, False), (3, True)])
    def test_opens_when_more_than_so_many_clients_are_known(self, known: int, open_: bool) -> None:
        ledger = heard(make_ledger(), range(known))
        setup, state = make_setup(ledger), make_state(ledger, deadline=PeakState(77.0))
        deadline_s, _ = PeakDeadline(gate_clients=2).plan(setup, state, np.array([0, 1]))
        assert (deadline_s == 60.0) is open_

    def test_before_it_opens_the_deadline_is_the_mean_time_with_a_forward_pass(self) -> None:
        setup = make_setup(make_ledger([100, 55]))  # 10 s + 10 x 5.5 and 10 s + 6 x 5.5: mean 54
        assert PeakDeadline().init(setup) == PeakState(54.0, 0.0)

    def test_an_empty_cohort_keeps_the_initial_deadline(self) -> None:
        setup, state = ready(make_ledger())
        assert PeakDeadline().plan(setup, state, np.zeros(0, dtype=np.int64)) == (77.0, 0)


class TestGuard:
    def test_is_set_after_a_round_that_nobody_finished_and_lifted_after_a_good_one(self) -> None:
        setup, state = ready(make_ledger())
        policy = PeakDeadline(guard_s=7.0)
        assert policy.observe(setup, state, make_result(missing=["c0"])) == PeakState(77.0, 7.0)
        good = make_result([make_report("c0")], missing=["c1"])
        assert policy.observe(setup, replace(state, deadline=PeakState(77.0, 7.0)), good) == PeakState(77.0, 0.0)

    def test_is_not_set_when_nobody_was_there_to_select(self) -> None:
        setup, state = ready(make_ledger())
        assert PeakDeadline().observe(setup, state, make_result()) == PeakState(77.0, 0.0)

    def test_adds_its_seconds_to_every_completion_time(self) -> None:
        ledger = make_ledger()
        setup, state = ready(ledger, guard_s=10.0)
        assert PeakDeadline().bounds(setup, state, everybody(ledger)) == (30.0, 70.0)


def test_a_million_clients_are_planned(million: Ledger) -> None:
    setup, state = ready(million, 0.5)
    deadline_s, quorum = PeakDeadline().plan(setup, state, everybody(million))
    low, high = PeakDeadline().bounds(setup, state, everybody(million))
    assert deadline_s == (low + high) / 2
    assert quorum == 1_000_000
