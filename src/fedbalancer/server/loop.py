"""The loop of every run: plan, run, observe, until stop. It knows only a server and an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fedbalancer.core.contracts import Engine
from fedbalancer.core.types import IndexArray, RoundPlan, RoundResult, ServerState, Setup
from fedbalancer.server.report_check import CohortFaults, drop_invalid_reports


class RoundServer(Protocol):
    """A server that the loop can run: `Server`, or one whose ledger grows between rounds."""

    @property
    def setup(self) -> Setup: ...
    def prepare(self, state: ServerState) -> ServerState: ...
    def plan(self, state: ServerState, available: IndexArray) -> RoundPlan: ...
    def cohort_faults(self, state: ServerState) -> CohortFaults: ...
    def observe(self, state: ServerState, result: RoundResult) -> ServerState: ...


def rounds(
    server: RoundServer, engine: Engine, state: ServerState, stop: Callable[[ServerState], bool]
) -> Iterator[tuple[ServerState, RoundResult]]:
    """Run rounds until `stop` returns True.

    Args:
        server: Plans rounds and observes their results.
        engine: Runs the planned rounds.
        state: The state to start from.
        stop: Called with the state before each round.

    Yields:
        The state after each round, and the result of the round.
    """
    while not stop(state):
        state = server.prepare(state)
        plan = server.plan(state, engine.available(state.clock_s))
        raw_result = engine.run(plan, state.weights, state.clock_s)
        result = drop_invalid_reports(raw_result, state, server.setup, server.cohort_faults(state))
        state = server.observe(state, result)
        yield state, result
