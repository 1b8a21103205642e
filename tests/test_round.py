"""The number of modules that a simulated round passes through, which a newcomer has to read to follow it."""

from __future__ import annotations

import sys
from types import FrameType

from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds

MAX_MODULES = 35
"""Lower it when modules are merged."""


def trace_round() -> set[str]:
    """Return the modules whose functions run in the second round of FedBalancer on `synthetic`, executed inline."""
    spec = RunSpec(task="synthetic", method="fedbalancer", seed=0, rounds=2)
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("fedbalancer."):
            modules.add(frame.f_globals["__name__"])

    with ExecutorCache() as cache:
        task = cache.load_task(spec)
        simulation = build(spec, task, cache.executor(spec, task))
        start = simulation.server.init(simulation.executor.initial_weights(spec.seed))
        every_round = rounds(simulation.server, simulation.engine, start, lambda state: state.round >= 2)
        next(every_round)
        sys.setprofile(note)
        try:
            next(every_round)
        finally:
            sys.setprofile(None)
    return modules


def test_a_simulated_round_passes_through_few_modules() -> None:
    modules = trace_round()
    assert len(modules) <= MAX_MODULES, "\n".join(sorted(modules))


if __name__ == "__main__":
    print(*sorted(trace_round()), sep="\n")
