"""The memory of a population: columns, not objects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from builders import make_setup

from fedbalancer.core.types import Ledger
from fedbalancer.methods.table import method
from fedbalancer.server.loop import rounds
from fedbalancer.server.server import Server
from fedbalancer.simulation.devices import Network, Phones, Traces, estimate_network_s, resolve_latency, sample_batch_s
from fedbalancer.simulation.engine import SimulatedEngine
from fedbalancer.simulation.executors import InlineExecutor
from fedbalancer.training.timing_only import TimingOnly

COUNT = 50_000
CLIENTS = tuple(f"u{number:05d}" for number in range(COUNT))
SIZES = dict(zip(CLIENTS, np.random.default_rng(0).integers(50, 400, COUNT).tolist(), strict=True))
TRACES = Traces({"night": np.array([[0.0, 6e4]]), "day": np.array([[3e4, 8e4]])}, 86_400.0)


@pytest.fixture
def traced() -> Iterator[None]:
    sample_batch_s(Phones(0, resolve_latency("femnist"), Network(0)), ["u0"], 1)  # imports are not counted
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["fedavg+1t", "fedbalancer"])
def test_a_client_takes_less_than_200_bytes_beyond_its_id_and_size(name: str) -> None:
    devices = Phones(0, resolve_latency("femnist"), Network(0))
    ledger = Ledger.start(
        CLIENTS,
        np.fromiter(SIZES.values(), dtype=np.int64),
        estimate_network_s(devices, CLIENTS, 10**6, 10**6),
        sample_batch_s(devices, CLIENTS, 10),
    )
    chosen, executor = method(name), InlineExecutor(TimingOnly(SIZES))
    there = TRACES.assign(CLIENTS, seed=0)
    engine = SimulatedEngine(chosen.client, ledger, executor, devices, there, 10**6)
    server = Server(chosen, make_setup(ledger, clients_per_round=20))
    start = server.init(executor.initial_weights(0))
    for after, _ in rounds(server, engine, start, lambda state: state.round >= 4):
        if after.round == 1:  # what the start took is no longer there
            tracemalloc.reset_peak()
    assert tracemalloc.get_traced_memory()[1] / COUNT < 200
