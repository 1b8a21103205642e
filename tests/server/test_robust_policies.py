"""The choices of `+robust`: what each promises about liars, and that honest clients are not held up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from builders import heard, known_clients, make_ledger, make_report, make_result, make_setup, make_state, oort_world
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ServerState, Timings
from fedbalancer.methods.table import method
from fedbalancer.server.aggregate import CheckedUpdates, MajorityVote, Median, WeightedMean
from fedbalancer.server.aggregate.checked import CheckedState
from fedbalancer.server.clients import CappedParticipation, Oort, OverThresholdUtility, Uniform
from fedbalancer.server.clients.participation import CountingState, limit_losses
from fedbalancer.server.deadline import FixedDeadline, LimitedDeadline, PeakDeadline, WaitForShare
from fedbalancer.server.deadline.limited import LimitedState
from fedbalancer.server.deadline.peak import PeakState
from fedbalancer.server.pace import MedianControl, PaceState
from fedbalancer.server.threshold import RecentThreshold


class TestComposition:
    def test_every_choice_that_believes_its_clients_is_made_safe(self) -> None:
        robust = method("fedbalancer+robust[w=5]")
        assert robust.clients == CappedParticipation(OverThresholdUtility())
        assert robust.deadline == LimitedDeadline(PeakDeadline())
        assert (robust.threshold, robust.pace) == (RecentThreshold(), MedianControl(5))
        assert robust.aggregate == CheckedUpdates(WeightedMean())

    def test_what_needs_nothing_stays(self) -> None:
        robust = method("fedavg+1t+robust")
        assert (robust.clients, robust.deadline) == (Uniform(), FixedDeadline(1))
        assert method("fedavg+wfa+robust").deadline == WaitForShare()
        assert method("fedbalancer+signsgd+robust").aggregate == MajorityVote()
        assert method("oort+robust").clients == CappedParticipation(Oort())

    def test_it_comes_after_all_others_wherever_it_stands(self) -> None:
        one, other = method("fedbalancer+robust+median"), method("fedbalancer+median+robust")
        assert one.aggregate == other.aggregate == CheckedUpdates(Median())


def threshold_of(policy: RecentThreshold, reports: list[Any], ratio: float = 0.5) -> float:
    state = make_state(make_ledger([100] * 40), threshold=policy.init(make_setup()))
    for number, each in enumerate(reports, 1):
        state = replace(state, threshold=policy.observe(make_setup(), state, make_result(each, round=number)))
    return policy.threshold(make_setup(), replace(state, pace=PaceState(loss_threshold_ratio=ratio)))


class TestRecentThreshold:
    honest: ClassVar = [make_report(f"c{n}", loss_low=n / 20, loss_high=1 + n / 20) for n in range(20)]

    def test_it_lies_between_a_low_quantile_and_the_median(self) -> None:
        low, high = np.quantile(np.arange(20) / 20, 0.05), np.median(1 + np.arange(20) / 20)
        assert threshold_of(RecentThreshold(), [self.honest]) == pytest.approx((low + high) / 2)
        assert threshold_of(RecentThreshold(), [self.honest], ratio=0.0) == 0.0
        assert threshold_of(RecentThreshold(), []) == 0.0

    @pytest.mark.parametrize(("low", "high"), [(0.1, 1e40), (-1e7, 2.0), (1e7, 1e7)])
    def test_a_liar_moves_it_by_a_rank_however_large_its_numbers_are(self, low: float, high: float) -> None:
        liar = make_report("c30", loss_low=low, loss_high=high)
        moved = threshold_of(RecentThreshold(), [[*self.honest, liar]]) - threshold_of(RecentThreshold(), [self.honest])
        assert abs(moved) <= 0.05

    @pytest.mark.parametrize("low", [-1e7, -1.0, 0.0, 1e7])
    def test_three_liars_of_23_move_it_by_as_many_ranks(self, low: float) -> None:
        liars = [make_report(f"c{n}", loss_low=low, loss_high=max(low, 2.0)) for n in (30, 31, 32)]
        moved = threshold_of(RecentThreshold(), [[*self.honest, *liars]])
        assert abs(moved - threshold_of(RecentThreshold(), [self.honest])) <= 3 * 0.05

    def test_losses_that_are_negative_for_most_stay_so(self) -> None:
        below = [make_report(f"c{n}", loss_low=-1.0, loss_high=1.0) for n in range(20)]
        assert threshold_of(RecentThreshold(), [below]) == 0.0
        assert threshold_of(RecentThreshold(), [below], ratio=0.75) == 0.5

    def test_a_client_is_one_voice_however_often_it_comes(self) -> None:
        liar = make_report("c30", loss_low=5.0, loss_high=50.0)
        once = threshold_of(RecentThreshold(), [[*self.honest, liar]])
        assert threshold_of(RecentThreshold(), [self.honest, [liar], [liar], [liar]]) == once

    def test_it_forgets_after_its_window_but_not_everything(self) -> None:
        late = make_report("c1", loss_low=0.0, loss_high=2.0)
        assert threshold_of(RecentThreshold(window=2), [self.honest, [], [late]]) == 1.0
        assert threshold_of(RecentThreshold(window=1), [[late], [], []]) == 1.0


class TestMedianControl:
    def after(self, control: MedianControl, *rounds: list[float]) -> Any:
        pace = control.init(make_setup())
        for losses_per_s in rounds:
            pace = control.step(pace, np.array(losses_per_s))
        return pace

    def test_a_clear_change_makes_a_whole_step(self) -> None:
        after_round = self.after(MedianControl(w=1), [4.0], [2.0], [1.0])
        assert (after_round.loss_threshold_ratio, after_round.deadline_ratio) == (0.1, 0.9)
        back = self.after(MedianControl(w=1), [4.0], [2.0], [4.0])
        assert (back.loss_threshold_ratio, back.deadline_ratio) == (0.0, 1.0)

    def test_a_small_change_makes_a_small_step(self) -> None:
        assert self.after(MedianControl(w=1), [1.0], [0.9]).loss_threshold_ratio == pytest.approx(0.2 * 0.05)
        assert self.after(MedianControl(w=2), [1.0], [1.0], [0.5]).observed == 3

    def test_a_liar_changes_a_step_by_as_little_as_it_moves_the_median(self) -> None:
        honest = [list(np.linspace(1, 2, 11)), list(np.linspace(0.9, 1.9, 11))]
        lied = [honest[0], [*honest[1][:-1], 1e9]]
        one, other = self.after(MedianControl(w=1), *honest), self.after(MedianControl(w=1), *lied)
        assert one.loss_threshold_ratio == other.loss_threshold_ratio, "who is above the median anyway moves nothing"

    def test_the_window_is_of_rounds_with_reports(self) -> None:
        after_round = self.after(MedianControl(w=2), *[[float(n)] for n in range(7)])
        assert after_round.losses_per_s.tolist() == [3.0, 4.0, 5.0, 6.0]
        state = make_state(pace=after_round)
        silent = MedianControl(w=2).observe(make_setup(), state, make_result([], ["c0"]))
        assert (silent.utility, silent.observed) == (None, 7)

    def test_losses_are_per_second_of_the_deadline_or_of_the_round(self) -> None:
        reports = [
            make_report("c0", loss_sum=10.0),
            make_report("c1", loss_sum=30.0),
            make_report("c2", loss_count=0.0),
        ]
        assert MedianControl.losses_per_second(make_result(reports, deadline_s=10.0)).tolist() == [0.1, 0.3]
        waited = make_result(reports, deadline_s=math.inf, seconds=20.0)
        assert MedianControl.losses_per_second(waited).tolist() == [0.05, 0.15]


class TestLimitedDeadline:
    ledger = heard(make_ledger([100] * 6, network_s=10.0, batch_s=1.0), range(6))

    def plan(self, ledger: Any, last_s: float | None = None, **changes: Any) -> float:
        policy = LimitedDeadline(PeakDeadline(), **changes)
        state = make_state(ledger, deadline=LimitedState(PeakState(100.0), last_s))
        return policy.plan(make_setup(ledger), state, np.arange(6))[0]

    def test_of_honest_clients_it_is_the_other_policys(self) -> None:
        assert self.plan(self.ledger) == 60.0  # ten batches of a second, five epochs, and the network

    def test_clients_that_say_they_are_fast_do_not_take_the_others_time(self) -> None:
        fast = replace(self.ledger, batch_s_sum=np.array([1e-3, 1.0, 1.0, 1.0, 1.0, 1.0]), network_s=np.full(6, 5.0))
        fast = replace(fast, network_s=np.array([1.0, 10.0, 10.0, 10.0, 10.0, 10.0]))
        state = make_state(fast, deadline=PeakState(100.0))
        assert PeakDeadline().plan(make_setup(fast), state, np.arange(6))[0] < 3, "the paper's follows it"
        assert self.plan(fast) == 20.0, "one epoch of the others"

    def test_it_moves_by_its_rate_at_most(self) -> None:
        assert self.plan(self.ledger, last_s=10.0) == 15.0
        assert self.plan(self.ledger, last_s=300.0) == 200.0
        assert self.plan(self.ledger, last_s=50.0) == 60.0

    def observed(self, report: Any, deadline_s: float = 100.0, missing: tuple[str, ...] = (), **setup: Any) -> Any:
        """The policy's state for clients with 100 samples and 1 s per batch: 10 s per epoch, 10 s of network."""
        policy, known = LimitedDeadline(), make_setup(make_ledger([100] * 6), **setup)
        result = make_result([report] if report else [], missing, deadline_s=deadline_s)
        state = make_state(known.ledger.record(result), deadline=policy.init(known))
        return (10 * policy.observe(known, state, result).batch_s).tolist()

    @given(
        epochs=st.floats(1e-6, 5.0), trained=st.integers(1, 100), batch_s=st.floats(1e-9, 60.0),
        over=st.floats(0.0, 100.0), stops=st.booleans(), took_s=st.floats(11.0, 100.0),
    )  # fmt: skip
    def test_claims_about_work_and_speed_change_nothing(
        self, epochs: float, trained: int, batch_s: float, over: float, stops: bool, took_s: float
    ) -> None:
        honest = replace(make_report("c0", trained=100), timings=Timings(5.0, 0.0, took_s - 10.0, 5.0))
        claims = replace(honest.summary, trained=trained, batch_s=batch_s, over_count=over)
        lied = replace(honest, epochs=epochs, summary=claims)
        one, other = (self.observed(report, stops_in_epoch=stops)[0] for report in (honest, lied))
        assert other == pytest.approx(one, rel=1e-6)

    def test_an_epoch_takes_what_the_server_measured(self) -> None:
        """A client expected at 10 s per epoch had time for all five: 75 s of work are 15 s each, a fifth of the way."""
        assert self.observed(replace(make_report("c0"), timings=Timings(5.0, 0.0, 75.0, 5.0)))[0] == pytest.approx(11.0)
        """In 40 - 10 s only three fit, so 27 s of work are 9 s each."""
        assert self.observed(replace(make_report("c0"), timings=Timings(5.0, 0.0, 27.0, 5.0)), 40.0)[
            0
        ] == pytest.approx(9.8)
        assert self.observed(make_report("c0"))[0] == 10.0, "nobody measured"

    def test_a_missed_deadline_is_the_least_that_an_epoch_takes(self) -> None:
        after_round = self.observed(None, 40.0, ("c1",))
        assert after_round[1] == pytest.approx(10.0 + (30.0 - 10.0) / 5)
        assert math.isnan(after_round[0]), "who was not asked"
        assert self.observed(None, 15.0, ("c1",))[1] == 10.0
        assert math.isnan(self.observed(None, math.inf, ("c1",))[1])

    def test_who_waits_for_all_goes_on_to(self) -> None:
        policy = LimitedDeadline(WaitForShare())
        state = make_state(self.ledger, deadline=policy.init(make_setup(self.ledger)))
        assert policy.plan(make_setup(self.ledger), state, np.arange(6)) == (math.inf, 6)

    def test_the_last_deadline_is_remembered(self) -> None:
        policy = LimitedDeadline()
        state = make_state(self.ledger, deadline=policy.init(make_setup(self.ledger)))
        after = policy.observe(make_setup(self.ledger), state, make_result([make_report("c0")], deadline_s=77.0))
        assert after.last_s == 77.0
        with pytest.raises(BadSetting, match="rate"):
            LimitedDeadline(rate=0.5)


class TestCappedParticipation:
    def world(self, utility: list[float], selected: list[int], round: int) -> tuple[Any, ServerState]:
        setup, state = oort_world(known_clients(utility), clients_per_round=3)
        own = CountingState(state.clients, np.array(selected, dtype=np.int32))
        return setup, replace(state, round=round, clients=own)

    def test_a_client_that_was_chosen_too_often_sits_out(self) -> None:
        """30 clients, 3 a round: a fair share is a tenth; after 20 rounds 1 + 1.5 x 2 is the most."""
        setup, state = self.world([1e6, *np.linspace(1, 2, 29)], [4, *[2] * 29], 20)
        assert 0 not in CappedParticipation().select_clients(setup, state, np.arange(30))
        assert (
            OverThresholdUtility().select_clients(setup, replace(state, clients=state.clients.inner), np.arange(30))[0]
            == 0
        )

    def test_a_client_whose_updates_were_refused_is_selected_less(self) -> None:
        """Selected twice in twenty rounds: less than anybody may be, and more than after two refusals."""
        setup, state = self.world([1e6, *np.linspace(1, 2, 29)], [2, *[1] * 29], 20)
        refused = replace(state, aggregate=CheckedState(None, refusals={state.ledger.clients[0]: 2}))
        wrapped = replace(state, aggregate=CountingState(refused.aggregate))
        everybody = np.arange(30)
        assert 0 in CappedParticipation().select_clients(setup, state, everybody)
        assert 0 not in CappedParticipation().select_clients(setup, refused, everybody)
        assert 0 not in CappedParticipation().select_clients(setup, wrapped, everybody)
        assert 0 in CappedParticipation(refused_share=1.0, times=4.0).select_clients(setup, refused, everybody)

    def test_where_too_few_are_left_the_least_chosen_are_offered(self) -> None:
        setup, state = self.world([1.0] * 8, [9, 9, 9, 9, 9, 9, 9, 30], 5)
        after_round = CappedParticipation().select_clients(setup, state, np.arange(8))
        assert len(after_round) == 3
        assert 7 not in after_round

    def test_everybody_asked_is_counted_whether_it_reports_or_not(self) -> None:
        setup, state = self.world([1.0] * 6, [], 1)
        after = CappedParticipation().observe(setup, state, make_result([make_report("c1")], ["c4"]))
        assert after.selected.tolist() == [0, 1, 0, 0, 1, 0]

    def test_losses_far_over_the_median_clients_are_cut(self) -> None:
        ledger = replace(known_clients([1.0, 1.0, 1.0, 1000.0]), loss_mean=np.array([1.0, 1.0, np.nan, 1e9]))
        cut = limit_losses(ledger, 3.0)
        assert cut.over_sumsq.tolist() == [1.0, 1.0, 1.0, 9.0]
        assert cut.loss_mean[[0, 1, 3]].tolist() == [1.0, 1.0, 3.0]
        assert limit_losses(make_ledger(), 3.0).loss_mean is not None
