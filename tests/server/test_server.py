"""The server plans and observes, and changes nothing that it is given."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from builders import Unchanged, make_ledger, make_report, make_result, make_setup, same

from fedbalancer.core.contracts import Aggregator, DeadlinePolicy
from fedbalancer.core.errors import BadSetting, TrainingDiverged
from fedbalancer.core.schedules import LinearWarmup
from fedbalancer.core.types import ClientReport, FailedClient, RoundPlan, RoundResult, ServerState
from fedbalancer.methods.table import BASES, method
from fedbalancer.server.server import STATEFUL_SLOTS, Server

METHODS = sorted(BASES)
EVERYBODY = np.arange(6)


def make_server(name: str = "fedbalancer") -> Server:
    return Server(method(name).server, make_setup())


def start(server: Server) -> ServerState:
    return server.init(np.array([1.0, -1.0], dtype=np.float32))


def answer(plan: RoundPlan, lost: int = 1) -> RoundResult:
    """All but the last `lost` clients report; what they say depends on client and round."""
    reporting, missed = plan.cohort[: len(plan.cohort) - lost], plan.cohort[len(plan.cohort) - lost :]
    number = plan.order.round
    reports = tuple(
        make_report(client, [1.0 / number, 0.5 * row], 10.0 + row, loss_sum=10.0 / number, loss_low=0.1 * (row + 1))
        for row, client in enumerate(reporting)
    )
    reports = tuple(replace(report, arrays={"variate": report.update}) for report in reports)
    return RoundResult(plan, reports, tuple(FailedClient(client, "train") for client in missed), 50.0, 20.0)


def played(server: Server, rounds: int) -> list[ServerState]:
    states = [start(server)]
    for _ in range(rounds):
        states.append(server.observe(states[-1], answer(server.plan(states[-1], EVERYBODY))))
    return states


class TestPlan:
    @pytest.mark.parametrize("name", METHODS)
    def test_is_pure_and_deterministic(self, name: str) -> None:
        server = make_server(name)
        for state in played(server, 5):
            with Unchanged(server.setup, state, EVERYBODY):
                plan = server.plan(state, EVERYBODY)
            assert plan == server.plan(copy.deepcopy(state), EVERYBODY)

    def test_an_order_has_the_learning_rate_of_its_round(self) -> None:
        rates = {"learning_rate": lambda number: 1 / number, "schedule": LinearWarmup(rounds=1)}
        server = Server(method("fedavg+1t+qffl").server, make_setup(**rates))
        states = played(server, 3)
        assert [server.plan(state, EVERYBODY).order.learning_rate for state in states] == [0.5, 0.5, 1 / 3, 1 / 4]

    def test_says_all_that_a_client_is_told(self) -> None:
        server = Server(method("fedavg+1t").server, make_setup(seed=7, sample_cap=50, epochs=2, batch_size=20))
        plan = server.plan(start(server), EVERYBODY)
        order = plan.order
        assert (order.round, order.epochs, order.batch_size, order.seed, order.sample_cap) == (1, 2, 20, 7, 50)
        assert (order.loss_threshold, order.deadline_s) == (0.0, 16.0)
        assert plan.quorum == 3

    def test_the_cohort_is_in_order_of_client_id(self) -> None:
        ledger = make_ledger([100] * 12)  # row 10 is c10, which comes before c2
        server = Server(method("fedavg+wfa").server, make_setup(ledger, clients_per_round=12))
        assert server.plan(start(server), np.arange(12)).cohort == tuple(sorted(ledger.clients))

    @pytest.mark.parametrize("name", METHODS)
    def test_nobody_available_is_an_empty_round(self, name: str) -> None:
        server = make_server(name)
        for state in played(server, 3):
            plan = server.plan(state, np.zeros(0, dtype=np.int64))
            assert plan.cohort == ()
            refills = server.policies.late.refills
            assert plan.quorum == 0 or plan.reserve or not refills, "an asynchronous step waits for the next client"


class TestObserve:
    @pytest.mark.parametrize("name", METHODS)
    def test_is_pure_and_deterministic(self, name: str) -> None:
        server = make_server(name)
        for number, state in enumerate(played(server, 5)):
            result = answer(server.plan(state, EVERYBODY), lost=number % 4)
            with Unchanged(server.setup, state, result):
                after = server.observe(state, result)
            assert same(after, server.observe(copy.deepcopy(state), copy.deepcopy(result)))

    def test_advances_round_and_clock_by_window_and_round(self) -> None:
        server = make_server()
        states = played(server, 3)
        assert [state.round for state in states] == [0, 1, 2, 3]
        assert [state.clock_s for state in states] == [0.0, 70.0, 140.0, 210.0]

    def test_aggregates_the_reports(self) -> None:
        server = make_server("fedavg+wfa")
        reports = [make_report("c0", [3.0, 0.0], 1.0), make_report("c1", [0.0, 3.0], 2.0)]
        assert server.observe(start(server), make_result(reports)).weights.tolist() == [2.0, 1.0]

    @pytest.mark.parametrize("name", METHODS)
    def test_a_round_without_reports_keeps_the_model_and_the_ledger(self, name: str) -> None:
        server = make_server(name)
        state = played(server, 2)[-1]
        after = server.observe(state, answer(server.plan(state, EVERYBODY), lost=3))
        assert after.weights.tobytes() == state.weights.tobytes()
        assert same(after.ledger, state.ledger)
        assert (after.round, after.clock_s) == (state.round + 1, state.clock_s + 70)

    def test_policies_see_the_ledger_after_the_round(self) -> None:
        server = Server(method("fedbalancer").server, make_setup(clients_per_round=6))
        state = start(server)
        after = server.observe(state, answer(server.plan(state, EVERYBODY), lost=0))
        assert after.clients.exploration == 0.0  # everybody has now succeeded

    @pytest.mark.parametrize(
        "report",
        [
            make_report("c3", update=[math.nan, 0.0]),
            make_report("c3", update=[1.0]),
            make_report("c3", weight=0.0),
            make_report("c3", loss_high=math.inf),
        ],
        ids=["nan", "shape", "weight", "summary"],
    )
    def test_a_faulty_report_stops_the_run_and_names_client_and_round(self, report: ClientReport) -> None:
        server = make_server()
        state = replace(start(server), round=4)
        with pytest.raises(TrainingDiverged, match="client 'c3' in round 5"):
            server.observe(state, make_result([make_report("c0"), report]))


@pytest.mark.parametrize("name", METHODS)
def test_the_first_state_is_made_by_the_policies(name: str) -> None:
    server = make_server(name)
    state = start(server)
    assert (state.round, state.clock_s, state.ledger) == (0, 0.0, server.setup.ledger)
    for slot in STATEFUL_SLOTS:
        assert same(getattr(state, slot), getattr(server.policies, slot).init(server.setup))


@dataclass(frozen=True)
class Given(DeadlinePolicy):
    """A deadline of a user's own that gives just this."""

    what: object

    def plan(self, setup: object, state: object, cohort: object) -> Any:
        return self.what


@pytest.mark.parametrize("wrong", [60.0, (math.nan, 3), (-1.0, 3), ("sixty", 3), (60.0, 3, 1), (60.0, None), None])
def test_what_is_no_deadline_is_told_with_the_name_of_its_policy(wrong: object) -> None:
    server = Server(replace(method("fedbalancer").server, deadline=Given(wrong)), make_setup())
    with pytest.raises(BadSetting, match=rf"Given\.plan returned {re.escape(repr(wrong))} in round 1; .*\(60\.0, 5\)"):
        server.plan(start(server), EVERYBODY)


@pytest.mark.parametrize("right", [(60, 3), (np.float64(60.0), np.int64(3)), (math.inf, 0), (np.float32(0.0), 1)])
def test_any_kind_of_number_is_a_deadline(right: tuple[float, int]) -> None:
    server = Server(replace(method("fedbalancer").server, deadline=Given(right)), make_setup())
    plan = server.plan(start(server), EVERYBODY)
    assert (plan.order.deadline_s, plan.quorum) == right


@dataclass(frozen=True)
class Answers(Aggregator):
    """An aggregator of the user that returns something else."""

    answer: Any = None

    def aggregate(self, setup: Any, state: ServerState, reports: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (np.zeros(2), "an array of shape (2,)"),
        (None, "NoneType"),
        ((np.zeros(3), None), "an array of shape (3,)"),
        (([0.0, 0.0], None), "list"),
    ],
)
def test_what_is_no_pair_of_weights_and_state_is_told_with_the_name_of_the_aggregator(wrong: Any, got: str) -> None:
    server = Server(replace(method("fedavg+1t").server, aggregate=Answers(wrong)), make_setup())
    with pytest.raises(BadSetting, match=re.escape(f"Answers.aggregate returned {got} in round 1; it must return")):
        played(server, 1)
