"""A simulated world in which every number is chosen by the test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_order

from fedbalancer.client.samples import OverThreshold
from fedbalancer.client.work import WholeEpochs
from fedbalancer.core.types import (
    ClientWork,
    Evaluation,
    FloatArray,
    Layout,
    RoundPlan,
    RoundResult,
    TrainResult,
    Weights,
)
from fedbalancer.methods.table import Method
from fedbalancer.simulation.engine import SimulatedEngine

WEIGHTS = np.array([1.0, 2.0], dtype=np.float32)


@dataclass(frozen=True)
class Phone:
    """Batch latency, download and upload of one client in every round."""

    batch_s: float = 1.0
    download_s: float = 2.0
    upload_s: float = 3.0


@dataclass
class Phones:
    """A device model that gives each client its phone, and notes what it was asked."""

    phones: Mapping[str, Phone]
    asked: list[tuple[str, int, int, int]] = field(default_factory=list)

    def expected_network_s(self, client: str, down_bytes: int, up_bytes: int) -> float:
        return self.phones[client].download_s + self.phones[client].upload_s

    def sample_batch_s(self, client: str, count: int) -> FloatArray:
        return np.full(count, self.phones[client].batch_s)

    def draw(self, client: str, round: int, down_bytes: int, up_bytes: int) -> Phone:
        self.asked.append((client, round, down_bytes, up_bytes))
        return self.phones[client]


@dataclass
class Notes:
    """An executor that trains nothing and notes its work. Sample i has loss 10 + i in a training."""

    lists: Mapping[str, FloatArray]
    trained: list[ClientWork] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    layout = Layout((("weight", (2,)),))

    def initial_weights(self, seed: int) -> Weights:
        return WEIGHTS

    def train(self, weights: Weights, works: Sequence[ClientWork]) -> list[TrainResult]:
        self.trained.extend(works)
        return [self._trained(work) for work in works]

    def _trained(self, work: ClientWork) -> TrainResult:
        seen = np.sort(work.indices[: work.batches * work.batch_size])
        return TrainResult(work.client, np.ones(2, dtype=np.float32), seen, seen.astype(np.float64) + 10.0)

    def losses(self, weights: Weights, clients: Sequence[str]) -> list[FloatArray]:
        self.looked.extend(clients)
        return [self.lists[client].copy() for client in clients]

    def evaluate(self, weights: Weights) -> Evaluation:
        return Evaluation(0.5, 1.0, 7)

    def evaluate_clients(self, weights: Weights, clients: Sequence[str]) -> list[Evaluation]:
        return [Evaluation(0.5, 1.0, len(self.lists[client])) for client in clients]

    def close(self) -> None: ...


class Always:
    """Everybody is always there."""

    def is_available(self, client: str, at_s: float) -> bool:
        return True

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        return busy_s


@dataclass(frozen=True)
class Away:
    """Each named client is away from one second on the clock until another (maybe for ever)."""

    away: Mapping[str, tuple[float, float]]

    def is_available(self, client: str, at_s: float) -> bool:
        begin, end = self.away.get(client, (math.inf, math.inf))
        return not begin <= at_s < end

    def elapsed_s(self, client: str, start_s: float, busy_s: float) -> float:
        begin, end = self.away.get(client, (math.inf, math.inf))
        if start_s >= end or start_s + busy_s <= begin:
            return busy_s
        return busy_s + end - max(begin, start_s)


@dataclass
class World:
    """An engine and the fakes around it."""

    engine: SimulatedEngine
    devices: Phones
    executor: Notes

    def run(self, *cohort: str, quorum: int | None = None, clock_s: float = 0.0, **order: Any) -> RoundResult:
        clients = tuple(sorted(cohort))
        plan = RoundPlan(
            make_order(**{"learning_rate": 0.1, "clip_norm": 5.0} | order),
            clients,
            len(clients) if quorum is None else quorum,
        )
        return self.engine.run(plan, WEIGHTS, clock_s)


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> MakeWorld:
    """A world of clients c0, c1, ... with these phones and sizes; the losses of a forward pass rise with the index."""

    def make(
        method: Method,
        phones: Sequence[Phone] = (Phone(),) * 3,
        size: Sequence[int] | None = None,
        availability: Any = None,
        window_s: float = 20.0,
        **options: Any,
    ) -> World:
        sizes = size if size is not None else (20,) * len(phones)
        ledger = make_ledger(sizes, batch_s=[phone.batch_s for phone in phones])
        devices = Phones(dict(zip(ledger.clients, phones, strict=True)))
        executor = Notes({client: np.arange(float(n)) for client, n in zip(ledger.clients, sizes, strict=True)})
        there = availability if availability is not None else Always()
        engine = SimulatedEngine(method.client, ledger, executor, devices, there, 800, window_s=window_s, **options)
        return World(engine, devices, executor)

    return make


@pytest.fixture
def phone() -> type[Phone]:
    return Phone


@pytest.fixture
def away() -> type[Away]:
    return Away


@pytest.fixture
def needy() -> Method:
    """A method whose sample selection needs the loss list once there is a threshold."""
    return Method("needy").with_policies(samples=OverThreshold(), work=WholeEpochs())
