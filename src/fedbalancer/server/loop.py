"""plan -> run -> observe, until stop. Knows only a server and an engine, and what to believe of what it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fedbalancer.core.interfaces import Engine
from fedbalancer.core.types import RoundResult, ServerState
from fedbalancer.server.report_check import drop_invalid_reports
from fedbalancer.server.server import Server


def rounds(
    server: Server, engine: Engine, state: ServerState, stop: Callable[[ServerState], bool]
) -> Iterator[tuple[ServerState, RoundResult]]:
    """Run rounds from `state` on; yields the state after each round and what happened in it."""
    while not stop(state):
        plan = server.plan(state, engine.available(state.clock_s))
        told = engine.run(plan, state.weights, state.clock_s)
        result = drop_invalid_reports(told, state, server.setup, server.cohort_faults(state))
        state = server.observe(state, replace(result, validated=True))
        yield state, result
