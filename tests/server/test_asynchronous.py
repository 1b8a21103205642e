"""Asynchronous methods against literal transcriptions of their papers' pseudo-code, on random sequences of arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
from builders import make_ledger, make_order, make_report, make_setup, names
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedbalancer.core.types import RoundPlan, RoundResult, ServerState
from fedbalancer.methods.table import method
from fedbalancer.server.clients import Pisces
from fedbalancer.server.clients.simple import PiscesState
from fedbalancer.server.deadline import BoundedStaleness
from fedbalancer.server.late import Mixed, PendingClients
from fedbalancer.server.server import Server
from fedbalancer.testing import check_policy

Vector = NDArray[np.float64]
CLIENTS = 6
TARGETS = np.array([[3.0, -1.0], [0.0, 2.0], [-4.0, 0.5], [1.0, 1.0], [8.0, -8.0], [0.1, 0.2]])
NEW = ("fedasync", "ca2fl", "fadas", "pisces")


@dataclass
class Arrival:
    """A report: its client, its update, the model it started from, and the number of steps since then."""

    client: int
    update: Vector
    start: Vector
    staleness: int
    samples: float


def played(name: str, choices: list[int], concurrency: int, buffer: int) -> list[tuple[list[Arrival], Vector]]:
    """Run our server on a random sequence of arrivals: the reports of every step, and the model after it."""
    ledger = make_ledger([10 * (row + 1) for row in range(CLIENTS)])
    server = Server(method(name).server, make_setup(ledger, clients_per_round=concurrency))
    state = server.init(np.array([5.0, -5.0], dtype=np.float32))
    chosen, at_work, steps = iter(choices), {}, []
    for number in count(1):
        arrived: list[Arrival] = []
        started: set[int] = set()
        while len(arrived) < buffer:
            taken = {*at_work, *started, *(each.client for each in arrived)}
            idle = [client for client in range(CLIENTS) if client not in taken]
            while idle and len(at_work) < concurrency:
                client = idle.pop(next(chosen, 0) % len(idle))
                at_work[client] = (number, state.weights.astype(np.float64))
                started.add(client)
            if not at_work:
                break
            choice = next(chosen, None)
            if choice is None:
                return steps
            client = sorted(at_work)[choice % len(at_work)]
            begun, start = at_work.pop(client)
            update = 0.5 * (TARGETS[client] - start)
            arrived.append(Arrival(client, update, start, number - begun, 10.0 * (client + 1)))
        state = server.observe(state, result_of(arrived, started, sorted(at_work), number))
        steps.append((arrived, state.weights.astype(np.float64)))
    raise AssertionError


def result_of(arrived: list[Arrival], started: set[int], at_work: list[int], number: int) -> RoundResult:
    reports = [
        replace(make_report(f"c{each.client}", each.update, each.samples), staleness=each.staleness)
        for each in sorted(arrived, key=lambda each: each.client)
    ]
    cohort = tuple(f"c{client}" for client in sorted(started))
    plan = RoundPlan(make_order(round=number), cohort, len(reports), late="counts")
    return RoundResult(plan, tuple(reports), (), 50.0, under_way=tuple(f"c{client}" for client in at_work))


runs = given(st.lists(st.integers(0, 99), min_size=4, max_size=60), st.integers(1, 4))
few = settings(max_examples=40, deadline=None)
X0 = np.array([5.0, -5.0])


def assert_follows(steps: list[tuple[list[Arrival], Vector]], models: list[Vector]) -> None:
    assert len(steps) == len(models)
    for (_, ours), paper in zip(steps, models, strict=True):
        assert ours == pytest.approx(paper, rel=2e-5, abs=2e-5)


@runs
@few
def test_fedbuff_is_algorithm_1_of_nguyen_and_others(choices: list[int], buffer: int) -> None:
    steps = played(f"fedbuff[late=Buffered(buffer={buffer})]", choices, 4, buffer)
    x, models = X0, []
    for arrived, _ in steps:
        delta = np.zeros(2)
        for k, each in enumerate(arrived, start=1):  # "if receive client update"
            delta = delta + each.update / np.sqrt(1 + each.staleness)
            if k == buffer:
                x = x + delta / buffer  # eta_g = 1
                models.append(x)
    assert_follows(steps, models)


@pytest.mark.parametrize(("decay", "a", "b"), [("constant", 0.5, 4), ("polynomial", 0.5, 4), ("hinge", 10.0, 1)])
@given(st.lists(st.integers(0, 99), min_size=4, max_size=40))
@few
def test_fedasync_is_algorithm_1_of_xie_and_others(decay: str, a: float, b: float, choices: list[int]) -> None:
    name = f"fedasync[late=Mixed(alpha=0.9,decay={decay!r},a={a:g},b={b:g})]"
    steps = played(name, choices, 4, 1)
    x, models = X0, []
    for (each,), _ in steps:
        x_new = each.start + each.update  # what the client sends
        if decay == "constant":
            s = 1.0
        elif decay == "polynomial":
            s = (each.staleness + 1) ** -a
        else:
            s = 1.0 if each.staleness <= b else 1 / (a * (each.staleness - b) + 1)
        alpha = 0.9 * s
        x = (1 - alpha) * x + alpha * x_new
        models.append(x)
    assert_follows(steps, models)


@runs
@few
def test_ca2fl_is_algorithm_2_of_wang_and_others(choices: list[int], buffer: int) -> None:
    name = f"ca2fl[late=Buffered(buffer={buffer},power=0),aggregate=CalibratedMean(eta=0.5)]"
    steps = played(name, choices, 4, buffer)
    x, models = X0, []
    h_i, h = np.zeros((CLIENTS, 2)), np.zeros(2)
    for arrived, _ in steps:
        delta, m, fresh = np.zeros(2), 0, h_i.copy()
        for each in arrived:
            delta = delta + (each.update - h_i[each.client])
            fresh[each.client] = each.update
            m += 1
        v = h + delta / m
        x = x + 0.5 * v
        h_i = fresh
        h = h_i.sum(axis=0) / CLIENTS
        models.append(x)
    assert_follows(steps, models)


@pytest.mark.parametrize("tau_c", [1, 2])
@runs
@few
def test_fadas_is_algorithm_2_of_wang_and_others(tau_c: int, choices: list[int], buffer: int) -> None:
    policy = f"DelayAdaptive(eta=0.1,delay={tau_c})"
    steps = played(f"fadas[late=Buffered(buffer={buffer},power=0),aggregate={policy}]", choices, 4, buffer)
    x, models = X0, []
    m, v, v_hat = np.zeros((3, 2))
    for arrived, _ in steps:
        delta = np.mean([each.update for each in arrived], axis=0)
        tau_max = max(each.staleness for each in arrived)
        eta = 0.1 if tau_max <= tau_c else min(0.1, 0.1 / tau_max)
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        v_hat = np.maximum(v_hat, v)
        x = x + eta * m / (np.sqrt(v_hat) + 1e-8)
        models.append(x)
    assert_follows(steps, models)


@runs
@few
def test_pisces_weighs_reports_by_samples_and_staleness(choices: list[int], buffer: int) -> None:
    steps = played("pisces", choices, 4, buffer)
    x, models = X0, []
    for arrived, _ in steps:
        weights = np.array([each.samples / np.sqrt(1 + each.staleness) for each in arrived])
        x = x + np.average([each.update for each in arrived], axis=0, weights=weights)
        models.append(x)
    assert_follows(steps, models)


def pisces_state(exploration: float, losses: list[float], staleness: list[float], known: int) -> ServerState:
    ledger = make_ledger([10] * CLIENTS)
    rows = np.arange(CLIENTS)
    ledger = replace(
        ledger,
        participations=(rows < known).astype(np.int32),
        over_count=np.full(CLIENTS, 10.0),
        over_sumsq=10.0 * np.array(losses) ** 2,
    )
    history = np.full((CLIENTS, 5), np.nan)
    history[:known, -1] = staleness[:known]
    weights = np.zeros(2, dtype=np.float32)
    return ServerState(4, 0.0, weights, ledger, clients=PiscesState(exploration, history), late=PendingClients())


class TestPisces:
    @given(st.permutations(range(CLIENTS)), st.lists(st.integers(0, 9), min_size=CLIENTS, max_size=CLIENTS))
    def test_known_clients_come_by_utility_discounted_by_staleness(self, order: list[int], stale: list[int]) -> None:
        losses = [1.0 + place for place in order]
        state = pisces_state(0.0, losses, [float(each) for each in stale], CLIENTS)
        ranked = Pisces().rank_reserve(make_setup(state.ledger), state, np.arange(CLIENTS)[::-1])
        scores = [10 * losses[row] * (1 + stale[row]) ** -0.5 for row in ranked]
        assert scores == pytest.approx(sorted(scores, reverse=True))

    @given(st.integers(0, CLIENTS), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 999))
    def test_every_candidate_is_ranked_once_and_unknown_ones_come_first_if_all_explore(
        self, known: int, exploration: float, seed: int
    ) -> None:
        state = pisces_state(exploration, [1.0] * CLIENTS, [0.0] * CLIENTS, known)
        setup = make_setup(state.ledger, seed=seed, clients_per_round=3)
        ranked = Pisces().rank_reserve(setup, state, np.arange(CLIENTS)).tolist()
        assert sorted(ranked) == list(range(CLIENTS))
        if exploration != 0.5:
            unknown = [row >= known for row in ranked]
            assert unknown == sorted(unknown, reverse=exploration == 1.0)
        chosen = Pisces().select_clients(setup, state, np.arange(CLIENTS))
        assert len(chosen) == 3

    def test_it_remembers_the_last_five_stalenesses_and_explores_less(self) -> None:
        state = pisces_state(0.9, [1.0] * CLIENTS, [0.0] * CLIENTS, 0)
        own = state.clients
        for staleness in range(7):
            result = result_of([Arrival(2, np.zeros(2), X0, staleness, 10.0)], set(), [], 5)
            own = Pisces().observe(make_setup(state.ledger), replace(state, clients=own), result)
        assert own.staleness[2].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
        assert np.isnan(own.staleness[[0, 1, 3]]).all()
        assert own.exploration == pytest.approx(0.9 * 0.98**7)

    def test_it_steps_so_often_that_the_slowest_at_work_sees_the_bound(self) -> None:
        ledger = make_ledger([100] * CLIENTS, batch_s=[1, 2, 3, 4, 5, 6])  # 10 s of transfer, 50 batches
        state = ServerState(0, 0.0, np.zeros(2, dtype=np.float32), ledger, late=PendingClients(("c4",)))
        policy, setup = BoundedStaleness(bound=5.0), make_setup(ledger)
        assert policy.plan(setup, state, np.array([0, 2])) == (52.0, 2)
        assert policy.plan(setup, replace(state, late=PendingClients()), np.array([0, 2])) == (32.0, 2)


@pytest.mark.parametrize("name", NEW)
def test_keeps_the_contract(name: str) -> None:
    own = method(name)
    for slot in ("clients", "deadline", "aggregate", "late"):
        assert check_policy(getattr(own, slot)) == slot


def test_fedasync_keeps_the_models_of_clients_at_work_only() -> None:
    server = Server(method("fedasync").server, make_setup(make_ledger([10] * CLIENTS)))
    state = server.init(np.zeros(2, dtype=np.float32))
    state = server.observe(state, result_of([Arrival(0, np.ones(2), X0, 0, 10.0)], {0, 1, 2}, [1, 2], 1))
    state = server.observe(state, result_of([Arrival(1, np.ones(2), X0, 1, 10.0)], {3}, [2, 3], 2))
    assert (state.late.clients, state.late.rounds.tolist(), state.late.kept.tolist()) == (("c2", "c3"), [1, 2], [1, 2])
    assert state.late.models.tolist() == [[0.0, 0.0], [pytest.approx(0.6)] * 2]
    state = server.observe(state, result_of([Arrival(2, np.ones(2), X0, 2, 10.0)], set(), [3], 3))
    assert state.late.kept.tolist() == [2]
    assert Mixed(alpha=1.0).quorum(server.setup, state, 9) == 1


def test_the_reserve_has_everybody_else_in_an_order_that_changes_from_step_to_step() -> None:
    server = Server(method("fedbuff").server, make_setup(make_ledger([10] * 20), clients_per_round=4))
    state = server.init(np.zeros(2, dtype=np.float32))
    first, second = (server.plan(replace(state, round=number), np.arange(12)) for number in (0, 1))
    for plan in (first, second):
        assert plan.concurrency == 4
        assert sorted((*plan.cohort, *plan.reserve)) == sorted(names(20))
        assert set(plan.cohort) <= set(names(12)), "the reserve may be unavailable now, the cohort may not"
    assert first.reserve != second.reserve
    assert server.plan(state, np.arange(12)) == first
    started = first.start_from_reserve(first.reserve[:2])
    assert started.cohort == tuple(sorted((*first.cohort, *first.reserve[:2])))
    assert started.reserve == first.reserve[2:]
