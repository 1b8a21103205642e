"""A round in which nothing can happen still takes time: a budget always ends."""

from __future__ import annotations

import numpy as np
from experiments import tinytask

from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds
from fedbalancer.simulation.devices import Traces


def test_the_clock_moves_although_nobody_is_there() -> None:
    spec = RunSpec(task=tinytask.load(), method="fedavg+wfa", settings={"window_s": 0.0}, timing_only=True)
    world = build(spec, tinytask.load())
    never = {client: np.array([[86_000.0, 86_400.0]]) for client in world.engine.ledger.clients}
    world.engine.availability = Traces(never, 86_400.0)
    state = world.server.init(world.executor.initial_weights(0))
    clocks = [after.clock_s for after, _ in rounds(world.server, world.engine, state, lambda s: s.clock_s >= 5)]
    assert clocks == [1.0, 2.0, 3.0, 4.0, 5.0]
