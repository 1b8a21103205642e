"""Reports that arrive after their round has closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_result, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import ClientReport, RoundResult
from fedbalancer.methods.table import method
from fedbalancer.server.late import Boosted, Buffered, Joins, Lost, PendingClients, staleness_weight
from fedbalancer.server.server import Server
from fedbalancer.testing import check_policy


def stale(staleness: int, client: str = "c0", update: Any = (2.0, 4.0), weight: float = 10.0) -> ClientReport:
    return replace(make_report(client, update, weight), staleness=staleness)


def joined(result: RoundResult, rule: Any) -> RoundResult:
    return replace(result, plan=replace(result.plan, late=rule))


@pytest.mark.parametrize("policy", [Lost(), Joins(), Joins(1.0), Buffered(), Buffered(3)], ids=str)
def test_keeps_the_contract(policy: Any) -> None:
    assert check_policy(policy) == "late"


@given(st.integers(0, 10**4))
def test_a_report_of_tau_rounds_ago_is_worth_one_over_the_root_of_one_plus_tau(tau: int) -> None:
    assert staleness_weight(tau) == pytest.approx(1 / math.sqrt(1 + tau), rel=1e-15)
    assert Joins().weighted(make_setup(), make_state(), [stale(tau)])[0].weight == 10.0 * staleness_weight(tau)
    buffered = Buffered().weighted(make_setup(), make_state(), [stale(tau)])[0]
    assert buffered.update == pytest.approx(np.array([2.0, 4.0]) / math.sqrt(1 + tau), rel=1e-6)
    assert buffered.weight == 1.0


def test_what_is_in_time_keeps_its_weight_and_its_bytes() -> None:
    report = stale(0)
    (same,) = Joins().weighted(make_setup(), make_state(), [report])
    assert same.weight == report.weight
    assert same.update is report.update
    assert Lost().weighted(make_setup(), make_state(), [report]) == [report]


def test_a_late_report_pulls_by_its_samples_and_its_age() -> None:
    own = method("fedavg+1t+late")
    server = Server(own.server, make_setup())
    state = replace(server.init(np.zeros(2, dtype=np.float32)), round=3)
    result = make_result([stale(0, "c0", (1.0, 0.0), 10.0), stale(3, "c1", (0.0, 1.0), 20.0)])
    after = server.observe(state, joined(result, "joins"))
    assert after.weights.tolist() == [0.5, 0.5]  # 10 fresh samples against 20 at half their weight
    assert after.ledger.participations[:2].tolist() == [1, 1]


def test_fedbuffs_step_is_the_sum_of_scaled_updates_over_the_buffer_whatever_the_clients_sizes() -> None:
    own = method("fedbuff")
    server = Server(own.server, make_setup())
    state = server.init(np.zeros(2, dtype=np.float32))
    result = make_result([stale(0, "c0", (1.0, 0.0), 10.0), stale(3, "c1", (0.0, 1.0), 900.0)])
    assert server.observe(state, joined(result, "counts")).weights.tolist() == [0.5, 0.25]


def test_policies_that_steer_a_round_see_what_was_sent_for_it() -> None:
    own = method("fedbalancer+late")
    server = Server(own.server, make_setup())
    state = server.init(np.zeros(2, dtype=np.float32))
    fresh = make_report("c0", loss_low=1.0, loss_high=3.0)
    late = replace(make_report("c1", loss_low=0.1, loss_high=99.0), staleness=2)
    after = server.observe(state, joined(make_result([fresh, late]), "joins"))
    assert (after.threshold.low, after.threshold.high) == (1.0, 3.0)
    assert after.ledger.explored[:2].tolist() == [True, True]
    counted = server.observe(state, joined(make_result([fresh, late]), "counts"))
    assert (counted.threshold.low, counted.threshold.high) == (0.1, 51.0)


class TestBuffered:
    @pytest.mark.parametrize(("clients", "buffer"), [(1, 1), (2, 1), (5, 3), (10, 5), (20, 10), (100, 10)])
    def test_the_buffer_is_the_papers_ten_and_at_most_half(self, clients: int, buffer: int) -> None:
        setup, state = make_setup(clients_per_round=clients), make_state(late=PendingClients())
        assert Buffered().quorum(setup, state, 99) == buffer
        assert Buffered(7).quorum(setup, state, 99) == 7

    @given(st.integers(1, 6), st.integers(0, 6))
    def test_as_many_start_as_there_is_room_for(self, most: int, busy: int) -> None:
        ledger = make_ledger([20] * 12)
        server = Server(method("fedbuff").server, make_setup(ledger, clients_per_round=most))
        state = replace(server.init(np.zeros(2, dtype=np.float32)), late=PendingClients(ledger.clients[:busy]))
        plan = server.plan(state, np.arange(busy, 12))
        assert len(plan.cohort) == max(most - busy, 0)
        assert plan.late == "counts"
        assert not set(plan.cohort) & set(ledger.clients[:busy])

    def test_it_remembers_who_is_under_way(self) -> None:
        result = replace(make_result([make_report("c0")]), under_way=("c3", "c4"))
        assert Buffered().observe(make_setup(), make_state(), result) == PendingClients(("c3", "c4"))


@pytest.mark.parametrize("late", ["Joins(power=-1)", "Joins(power=inf)", "Boosted(beta=1)"])
def test_numbers_that_make_no_sense_are_refused_with_the_policy_and_what_would_be_right(late: str) -> None:
    with pytest.raises(BadSetting, match=r"cannot run: .* must .*at least"):
        method(f"fedavg+1t[late={late}]")


@pytest.mark.parametrize("name", ["fedbuff+late", "refl+late", "fedavg+1t+late+late"])
def test_what_counts_late_reports_anyway_is_told_so(name: str) -> None:
    with pytest.raises(BadSetting, match="already counts late reports"):
        method(name)


def report(client: str, update: Sequence[float], staleness: int = 0, weight: float = 10.0) -> ClientReport:
    return replace(make_report(client, update, weight), staleness=staleness)


def weights(reports: Sequence[ClientReport], beta: float = 0.35) -> dict[str, float]:
    return {each.client: each.weight for each in Boosted(beta).weighted(make_setup(), make_state(), reports)}


def test_boosted_keeps_the_contract() -> None:
    assert check_policy(Boosted()) == "late"


def test_the_papers_rule_in_numbers() -> None:
    fresh = [report("a", (1.0, 0.0)), report("b", (1.0, 0.0))]
    stale = [report("c", (1.0, 0.0), 1), report("d", (0.0, 0.0), 1, 20.0), report("e", (-1.0, 0.0), 3)]
    # They would move the mean (1, 0) of two by 0, 1/3 and 2/3 of its length, so L / Lmax is 0, 1/4 and 1.
    actual = weights([*fresh, *stale])
    assert actual["a"] == actual["b"] == 10.0
    assert actual["c"] == pytest.approx(10 * 0.65 / 2)
    assert actual["d"] == pytest.approx(20 * (0.65 / 2 + 0.35 * (1 - math.exp(-0.25))))
    assert actual["e"] == pytest.approx(10 * (0.65 / 4 + 0.35 * (1 - math.exp(-1))))


@pytest.mark.parametrize("fresh", [[], [report("a", (0.0, 0.0))]], ids=["none", "no step"])
def test_with_nothing_to_differ_from_only_the_age_counts(fresh: list[ClientReport]) -> None:
    actual = weights([*fresh, report("b", (1.0, 0.0), 1), report("c", (5.0, 0.0), 4)])
    assert (actual["b"], actual["c"]) == (pytest.approx(10 * 0.65 / 2), pytest.approx(10 * 0.65 / 5))


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 50)), min_size=1, max_size=6), st.floats(0, 0.99))
def test_a_stale_report_never_counts_for_more_than_a_fresh_one(stale: list[tuple[float, int]], beta: float) -> None:
    reports = [report("a", (1.0, 2.0))]
    reports += [report(f"b{n}", (value, 1.0), age) for n, (value, age) in enumerate(stale)]
    actual = weights(reports, beta)
    assert actual.pop("a") == 10.0
    assert all(0 <= value <= 10.0 for value in actual.values())
    assert all(np.isfinite(value) for value in actual.values())


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_beta_that_makes_no_sense_is_refused(beta: float) -> None:
    with pytest.raises(BadSetting, match=r"cannot run: Boosted\(beta=.* at least 0 and below 1"):
        method("fedavg+1t", late=Boosted(beta))


def test_without_stale_reports_nothing_changes() -> None:
    fresh = [report("a", (1.0, 0.0))]
    assert Boosted().weighted(make_setup(), make_state(), fresh) is fresh
