"""Recorded draws in the place of random ones, under the project's own loop, server and engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbalancer.client.timing_only import TimingOnly
from fedbalancer.devices import AlwaysOn, DeviceDraw, Replay
from fedbalancer.devices.network import DOWNLOAD_KB_BYTES
from fedbalancer.engine.executors import InlineExecutor
from fedbalancer.engine.simulated import SimulatedEngine
from fedbalancer.loop import rounds
from fedbalancer.methods import method
from fedbalancer.protocols import Stateless
from fedbalancer.server.server import Server
from fedbalancer.testing.golden.format import BaselineRun, GoldenFile, GoldenRound, GoldenSeed
from fedbalancer.types import IndexArray, Ledger, RoundResult, ServerState, Setup

UPLOAD_KB_BYTES = 1000
"""The recorded runs took an upload's kilobyte as 1000 bytes, the expected upload included."""


@dataclass(frozen=True)
class RecordedClients(Stateless):
    """Selects the clients that were selected: a cohort per round, from round 1 on."""

    cohorts: tuple[tuple[str, ...], ...]

    def choose(self, setup: Setup, state: ServerState, available: IndexArray) -> IndexArray:
        return state.ledger.rows(self.cohorts[state.round])


def replayed_rounds(golden: GoldenFile, seed: GoldenSeed, name: str, run: BaselineRun) -> list[RoundResult]:
    """The rounds of a run under the method called `name`."""
    devices = recorded_devices(golden, seed, run.rounds)
    setup = recorded_setup(golden, seed, devices)
    cohorts = tuple(tuple(draw[0] for draw in round.draws) for round in run.rounds)
    played = method(name, clients=RecordedClients(cohorts))
    executor = InlineExecutor(TimingOnly({client.subject: client.n for client in seed.clients}))
    engine = SimulatedEngine(played.client, setup.ledger, executor, devices, AlwaysOn(), golden.model_bytes)
    server = Server(played.server, setup)
    state = server.init(executor.initial_weights(0))
    return [result for _, result in rounds(server, engine, state, lambda state: state.round >= len(cohorts))]


def recorded_devices(golden: GoldenFile, seed: GoldenSeed, recorded: tuple[GoldenRound, ...] = ()) -> Replay:
    """The clients' devices, with the draws of the given rounds."""
    draws = {
        (number, client): DeviceDraw(batch_s, download_s, upload_s)
        for number, round in enumerate(recorded, start=1)
        for client, batch_s, download_s, upload_s, _ in round.draws
    }
    network_s = {}
    for client in seed.clients:
        down_kb_s, _, up_kb_s, _ = golden.speeds_kB_s[client.net]
        down_s = golden.model_bytes / DOWNLOAD_KB_BYTES / down_kb_s
        network_s[client.subject] = down_s + golden.model_bytes / UPLOAD_KB_BYTES / up_kb_s
    return Replay(draws, {client.subject: client.batch_s_10 for client in seed.clients}, network_s)


def recorded_setup(golden: GoldenFile, seed: GoldenSeed, devices: Replay) -> Setup:
    """What the server is told before the first round."""
    clients = tuple(client.subject for client in seed.clients)
    sampled = min(len(client.batch_s_10) for client in seed.clients)
    ledger = Ledger.start(
        clients,
        np.array([client.n for client in seed.clients]),
        np.array([devices.expected_network_s(client, golden.model_bytes, golden.model_bytes) for client in clients]),
        np.array([devices.sample_batch_s(client, sampled) for client in clients]),
    )
    return Setup(ledger, epochs=golden.E, batch_size=golden.B, clients_per_round=golden.K, seed=0)
