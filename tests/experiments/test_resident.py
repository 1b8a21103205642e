"""A long run does not grow: server, engine, and what they remember from round to round."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedbalancer.experiments.simulation import build
from fedbalancer.experiments.spec import RunSpec
from fedbalancer.server.loop import rounds

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.soak
@pytest.mark.skipif(not STATM.exists(), reason="there is no /proc to ask")
@pytest.mark.parametrize("method", ["fedbalancer", "fedbalancer+robust"])
def test_twenty_thousand_rounds_of_timing_grow_by_less_than_five_per_cent(method: str) -> None:
    """Without the tables of a run, which have a row per round and client."""
    count = int(os.environ.get("ROUNDS", "20000"))
    attacks = ["metadata-liar:5", "latency-liar:5"]
    spec = RunSpec(task="synthetic", method=method, users=100, timing_only=True, settings={"attacks": attacks})
    world = build(spec, spec.load_task())
    start = world.server.init(world.executor.initial_weights(0))
    warm = done = 0
    for state, _ in rounds(world.server, world.engine, start, lambda each: each.round >= count):
        done = state.round
        if done == max(count // 20, 1):
            warm = resident_bytes()
    assert done == count
    assert resident_bytes() < 1.05 * warm
