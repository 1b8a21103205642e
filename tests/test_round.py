"""How many modules a simulated round passes through: a newcomer has to read them all to follow one."""

from __future__ import annotations

import sys
from types import FrameType

from fedbalancer.experiments.executor_cache import ExecutorCache
from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds

MOST_MODULES = 60


def modules_of_a_round() -> set[str]:
    """The modules of which functions run in the second round of FedBalancer on `synthetic`, in this process."""
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
    modules = modules_of_a_round()
    assert len(modules) <= MOST_MODULES, "\n".join(sorted(modules))


if __name__ == "__main__":
    print(*sorted(modules_of_a_round()), sep="\n")
