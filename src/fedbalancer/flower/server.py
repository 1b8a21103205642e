"""The server of a run on Flower, whose ledger grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from fedbalancer.core.types import IndexArray, Ledger, RoundPlan, RoundResult, ServerState, Setup, Weights
from fedbalancer.flower.aggregation import UserAggregation
from fedbalancer.flower.grid_engine import GUARD_S, GridEngine
from fedbalancer.flower.ledger import with_network_times
from fedbalancer.server.report_check import CohortFaults
from fedbalancer.server.server import Server, ServerPolicies


class GrowingServer:
    """A server whose clients join while it runs, and whose round length T follows measurements.

    A simulated server knows all clients and their speed from the start. On Flower, clients join between rounds, and
    their speed and transport times are assumptions until they are measured. `prepare` and `observe` update the ledger
    and, where T depends on it, replace the `Server` that plans the rounds.

    Args:
        policies: The method's server policies.
        make_setup: Builds the setup of a server, including T, from a ledger.
        ledger: The ledger that T is computed from.
        engine: The engine that measures the clients.
        measure_network: Whether measurements replace assumptions.
        aggregation: The user's own `aggregate_train`, if there is one.
    """

    def __init__(
        self,
        policies: ServerPolicies,
        make_setup: Callable[[Ledger], Setup],
        ledger: Ledger,
        engine: GridEngine,
        *,
        measure_network: bool,
        aggregation: UserAggregation | None = None,
    ) -> None:
        self._policies, self._make_setup, self._engine = policies, make_setup, engine
        self._measures, self._aggregation = measure_network, aggregation
        self._server = self._build(ledger)
        self.nobody_finished = False
        self.planned_from: ServerState  # the state of the last `prepare`

    def _build(self, ledger: Ledger) -> Server:
        return Server(self._policies, self._make_setup(ledger))

    @property
    def setup(self) -> Setup:
        """The setup of the current server."""
        return self._server.setup

    def init(self, weights: Weights) -> ServerState:
        """Return the state before the first round."""
        return self._server.init(weights)

    def prepare(self, state: ServerState) -> ServerState:
        """Wait for free clients, and update suspensions, ledger and T before a round is planned."""
        engine, assumed = self._engine, set(self._engine.speeds.assumed)
        state = replace(state, suspensions=engine.update_suspensions(state.suspensions, state.round))
        if self._measures and engine.has_ledger:
            engine.wait_for_free_clients()
        state = replace(state, ledger=engine.update_ledger(state.ledger, self._measures))
        first_orders = engine.transport.take_first_orders() if self._measures else set()
        if self.nobody_finished and self._measures:
            state = self._lengthen(state)
        else:
            state = self._correct(state, assumed - engine.speeds.assumed, first_orders)
        self.planned_from = state = self._wait_for_eligible(state)
        return state

    def _wait_for_eligible(self, state: ServerState) -> ServerState:
        """Wait until the client selector may select somebody. The run's clock includes the wait."""
        engine, began_s = self._engine, state.clock_s
        while not engine.is_any_eligible(partial(self._any_eligible, state), state.clock_s - began_s):
            clock_s = state.clock_s + engine.wait_for_eligible(state.clock_s - began_s)
            state = replace(state, clock_s=clock_s, ledger=engine.update_ledger(state.ledger, self._measures))
        return state

    def _any_eligible(self, state: ServerState, rows: IndexArray) -> bool:
        return len(self._policies.clients.eligible(self.setup, state, rows)) > 0

    def plan(self, state: ServerState, available: IndexArray) -> RoundPlan:
        """Plan the next round."""
        return self._server.plan(state, available)

    def fold(self, state: ServerState, plan: RoundPlan) -> None:
        """Return None: replies arrive in any order and are kept until the round closes."""

    def cohort_faults(self, state: ServerState) -> CohortFaults:
        """Return the check that compares the reports of a round with each other."""
        return self._server.cohort_faults(state)

    def observe(self, state: ServerState, result: RoundResult) -> ServerState:
        """Return the state after a round, with the speeds that its reports measured."""
        after = self._server.observe(state, result)
        aggregation = self._aggregation
        if aggregation is not None and not result.reports and aggregation.model_noise_multiplier is None:
            after = replace(after, weights=aggregation.aggregate_nothing(after))
        return self._learn(after, result)

    def _learn(self, state: ServerState, result: RoundResult) -> ServerState:
        engine, assumed = self._engine, set(self._engine.speeds.assumed)
        for missing in result.missing:
            until = state.suspensions.until.get(missing.client, 0)
            if until > state.round and missing.problem:
                engine.log_event("sits out", client=missing.client, round=state.round, until=until, why=missing.problem)
        in_time = result.in_time if result.plan.late == "joins" else result  # late reports missed their deadline
        self.nobody_finished = in_time.ran_out_of_time
        if self.nobody_finished:
            engine.missed_rounds += 1
        elif in_time.reports:
            engine.missed_rounds = max(engine.missed_rounds - 1, 0)
        if self._measures:
            for client, until in ({} if engine.late_counts else engine.pauses.update(result)).items():
                engine.log_event("paused", client=client, round=state.round, until=until, why="misses the deadlines")
            state = replace(state, ledger=engine.speeds.update_speeds(state.ledger, result.reports))
        elif self.nobody_finished and not state.ledger.explored.any():
            return self._lengthen(state)
        return self._correct(state, assumed - engine.speeds.assumed)

    def _lengthen(self, state: ServerState) -> ServerState:
        """Recompute T after a round that nobody finished, with `GUARD_S` seconds more for each such round.

        Otherwise a deadline that is too short for this network and these devices would never be met.
        """
        engine = self._engine
        ledger = engine.update_ledger(state.ledger, self._measures)
        guard_s = 0.0 if self._measures else engine.missed_rounds * GUARD_S
        self._server = self._build(replace(ledger, network_s=ledger.network_s + guard_s))
        fresh = self._server.init(state.weights)
        state = replace(state, ledger=ledger, deadline=fresh.deadline)
        return state if ledger.explored.any() else replace(state, clients=fresh.clients)

    def _correct(self, state: ServerState, measured: set[str], first_orders: Iterable[str] = ()) -> ServerState:
        """Recompute T where it depended on assumptions.

        Args:
            state: The current state.
            measured: Clients whose speed was measured for the first time.
            first_orders: Clients to which a model was sent for the first time.
        """
        first, ledger = self.setup.ledger, state.ledger
        rows = first.rows(tuple(sorted(measured & set(first.clients))))
        transport = self._engine.transport
        network_s = {client: transport.expected_s(client) for client in first_orders if client in first.position}
        if not len(rows) and not network_s:
            return state
        total_s, count = first.batch_s_sum.copy(), np.array(first.batch_s_count)
        total_s[rows], count[rows] = ledger.batch_s_sum[rows], ledger.batch_s_count[rows]
        with_network = with_network_times(first, network_s)
        self._server = self._build(replace(with_network, batch_s_sum=total_s, batch_s_count=count))
        return replace(state, deadline=self._policies.deadline.retime(self.setup, state.deadline))
