"""The loop of rounds: plan, run, observe. It knows only a server and an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from fedbalancer.core.interfaces import Engine
from fedbalancer.core.types import IndexArray, RoundPlan, RoundResult, ServerState, Setup, UpdateFold
from fedbalancer.server.report_check import CohortFaults, drop_invalid_reports


class RoundServer(Protocol):
    """A server that the loop can run: `Server`, or one whose ledger grows between rounds."""

    @property
    def setup(self) -> Setup: ...
    def prepare(self, state: ServerState) -> ServerState: ...
    def plan(self, state: ServerState, available: IndexArray) -> RoundPlan: ...
    def fold(self, state: ServerState, plan: RoundPlan) -> UpdateFold | None: ...
    def cohort_faults(self, state: ServerState) -> CohortFaults: ...
    def observe(self, state: ServerState, result: RoundResult) -> ServerState: ...


def rounds(
    server: RoundServer, engine: Engine, state: ServerState, stop: Callable[[ServerState], bool]
) -> Iterator[tuple[ServerState, RoundResult]]:
    """Run rounds until `stop(state)` is true.

    Args:
        server: Plans rounds and computes the next state.
        engine: Runs the planned rounds, simulated or on devices.
        state: The state to start from.
        stop: Returns whether to stop before the next round.

    Yields:
        The state after each round, and the round's result without invalid reports.
    """
    while not stop(state):
        state = server.prepare(state)
        plan = server.plan(state, engine.available(state.clock_s))
        result = engine.run(plan, state.weights, state.clock_s, partial(server.fold, state, plan))
        result = drop_invalid_reports(result, state, server.setup, server.cohort_faults(state))
        state = server.observe(state, replace(result, validated=True))
        result = replace(result, folded=None)  # it is as large as the model
        yield state, result
