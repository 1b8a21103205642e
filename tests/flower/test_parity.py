"""The same policy objects make the same plans in the simulator and on Flower: one JSON of draws, thirty rounds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import Message

from fedbalancer.client.batches import epochs
from fedbalancer.devices import AlwaysOn
from fedbalancer.devices.many import DeviceDraw
from fedbalancer.devices.replay import Replay
from fedbalancer.engine import SimulatedEngine
from fedbalancer.engine.executors import InlineExecutor
from fedbalancer.engine.simulated import Training
from fedbalancer.flower.client import balanced
from fedbalancer.flower.compat import Array, ArrayRecord
from fedbalancer.flower.grid_engine import GridEngine, Waiting
from fedbalancer.flower.hello import answer
from fedbalancer.flower.layout import ModelLayout
from fedbalancer.flower.ledger import ledger_of
from fedbalancer.flower.orders import HELLO
from fedbalancer.flower.overhead import Overheads
from fedbalancer.loop import rounds
from fedbalancer.methods import Method, method
from fedbalancer.randomness import stream
from fedbalancer.server.server import Server
from fedbalancer.settings import resolve
from fedbalancer.types import (
    ClientWork,
    Evaluation,
    FloatArray,
    Layout,
    Ledger,
    RoundPlan,
    Setup,
    Trained,
    Weights,
)

ROUNDS, CLIENTS, TICK = 30, 12, 1 / 1024
SETTINGS = resolve({"clients_per_round": 5, "epochs": 4, "batch_size": 8, "w": 4, "deadline_gate": 0.3})


def draws_json() -> str:
    """Sizes and seconds of every client and round. All are multiples of a power of two, so that no order of adding them
    up rounds differently."""
    rng = np.random.default_rng(3)

    def ticks(low: float, high: float) -> float:
        return int(rng.integers(int(low / TICK), int(high / TICK))) * TICK

    made: dict[str, Any] = {}
    for number in range(CLIENTS):
        slow = 2.0 ** (number % 4)
        made[f"c{number:02d}"] = {
            "size": int(rng.integers(20, 120)),
            "network_s": ticks(2, 6),
            "batch_s_10": [ticks(0.1 * slow, 0.3 * slow) for _ in range(10)],
            "rounds": [[ticks(0.1 * slow, 0.4 * slow), ticks(0.5, 4), ticks(0.5, 4)] for _ in range(ROUNDS)],
        }
    return json.dumps(made)


@dataclass(frozen=True)
class Draws:
    """The JSON, as the devices of either world."""

    recorded: dict[str, Any]

    def of(self, client: str, round: int) -> DeviceDraw:
        return DeviceDraw(*self.recorded[client]["rounds"][round - 1])

    def replay(self) -> Replay:
        every = {(r, c): self.of(c, r) for c in self.recorded for r in range(1, ROUNDS + 1)}
        return Replay(
            every,
            {client: one["batch_s_10"] for client, one in self.recorded.items()},
            {client: one["network_s"] for client, one in self.recorded.items()},
        )


@dataclass(frozen=True)
class Losses:
    """A trainer whose losses fall with the rounds and differ by client and sample; its model stays where it is."""

    sizes: dict[str, int]
    layout = Layout((("w", (2,)),))

    def initial_weights(self, seed: int) -> Weights:
        return np.zeros(2, dtype=np.float32)

    def train(self, weights: Weights, work: ClientWork) -> Trained:
        seen = np.unique(np.concatenate(list(epochs(work))))
        found = stream(work.seed, "loss").gamma(2.0, 1.0, self.sizes[work.client])
        return Trained(work.client, np.zeros(2, dtype=np.float32), seen, found[seen])

    def losses(self, weights: Weights, client: str) -> FloatArray:
        return stream(0, "look", 0, client).gamma(2.0, 1.0, self.sizes[client])

    def evaluate(self, weights: Weights) -> Evaluation:
        return Evaluation(0.0, 0.0, 1)


class KnownWays(Overheads):
    """A client that knows how long the ways of this round take, as a simulated one does."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def budget_s(self, client: str, round: int, deadline_s: float) -> float:
        draw = self.draws.of(client, round)
        return deadline_s - draw.download_s - draw.upload_s


class Phone:
    """A client on the fake clock that runs the real client code."""

    def __init__(self, client: str, node: int, draws: Draws, trainer: Losses, own: Method) -> None:
        self.client, self.draws, self.trainer, self.method = client, draws, trainer, own
        self.recorded = draws.recorded[client]
        self.context = make_context(node, **{"client-id": client})
        self.now = 0.0

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        self.now = 0.0  # a phone's clock is its own
        if message.metadata.message_type == HELLO:
            latencies = self.recorded["batch_s_10"]
            reply = answer(message, self.context, self.recorded["size"], lambda *_: latencies, clock=lambda: self.now)
            return [(sent_s + self.recorded["network_s"], reply)]
        work = balanced(message, self.context, size=self.recorded["size"], method=self.method, clock=lambda: self.now)
        draw = self.draws.of(self.client, work.order.round)
        self.now += draw.download_s
        work._started = self.now

        def forward() -> FloatArray:
            losses = self.trainer.losses(work.weights(), self.client)
            if self.method.forward_pass == "every" or len(work._choose(losses)) < len(losses):
                self.now += 0.5 * math.ceil(len(losses) / work.order.batch_size) * draw.batch_s
            return losses

        work.select(forward=forward)
        for _ in work.batches():
            self.now += draw.batch_s
        counted = work.pace.counted(work.done)
        if not counted:
            return [(sent_s + self.now + draw.upload_s, work.reply())]
        trained = self.trainer.train(work.weights(), replace(work.client_work(), batches=counted))
        reply = work.reply(work.arrays, losses=trained.losses, seen=trained.seen)
        return [(sent_s + self.now + draw.upload_s, reply)]


def setup_of(ledger: Ledger, own: Method) -> Setup:
    return Setup(
        ledger=ledger, epochs=SETTINGS.epochs, batch_size=SETTINGS.batch_size,
        clients_per_round=SETTINGS.clients_per_round, seed=5, sample_cap=own.samples.cap(ledger.size),
        epoch_batches=own.epoch_batches, learning_rate=SETTINGS.learning_rate,
    )  # fmt: skip


def simulated(own: Method, draws: Draws, trainer: Losses) -> tuple[list[RoundPlan], list[tuple[str, ...]]]:
    replay = draws.replay()
    clients = tuple(sorted(draws.recorded))
    sizes = np.array([draws.recorded[client]["size"] for client in clients])
    network = np.array([replay.expected_network_s(client, 0, 0) for client in clients])
    ledger = Ledger.start(clients, sizes, network, np.stack([replay.sample_batch_s(c, 10) for c in clients]))
    engine = SimulatedEngine(own, ledger, InlineExecutor(trainer), replay, AlwaysOn(), Training(0.01), 8, window_s=0.0)
    server = Server(own, setup_of(ledger, own))
    start = server.init(trainer.initial_weights(0))
    return collected(rounds(server, engine, start, lambda state: state.round >= ROUNDS))


def on_flower(own: Method, draws: Draws, trainer: Losses) -> tuple[list[RoundPlan], list[tuple[str, ...]]]:
    clock = Clock()
    phones = {
        number + 2: Phone(client, number + 2, draws, trainer, own) for number, client in enumerate(draws.recorded)
    }
    layout = ModelLayout.of(ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))}))
    waiting = Waiting(settle_s=1e6, timeout_s=1e6, everybody=True, background=False, clock=clock, sleep=clock.sleep)
    engine = GridEngine(
        FakeGrid(clock, phones), own, layout, SETTINGS, run_key="parity", own_method=True, waiting=waiting,
        overheads=KnownWays(draws),
    )  # type: ignore[arg-type] # fmt: skip
    engine.gather(CLIENTS)
    ledger = engine.welcome(ledger_of([g for _, g in sorted(engine.nodes.greetings.items())]), measure_network=False)
    server = Server(own, setup_of(ledger, own))
    start = server.init(trainer.initial_weights(0))
    return collected(rounds(server, engine, start, lambda state: state.round >= ROUNDS))


def collected(made: Any) -> tuple[list[RoundPlan], list[tuple[str, ...]]]:
    results = [result for _, result in made]
    return [result.plan for result in results], [tuple(r.client for r in result.reports) for result in results]


METHODS = [
    "fedbalancer",
    "fedbalancer+batches",
    "fedbalancer+forwardpass",
    "fedavg+1t",
    "fedavg+spc",
    "prox+1t",
    "oort",
]


@pytest.mark.parametrize("name", METHODS)
def test_thirty_rounds_have_the_same_plans_in_both_worlds(name: str) -> None:
    draws = Draws(json.loads(draws_json()))
    trainer = Losses({client: one["size"] for client, one in draws.recorded.items()})
    own = method(name, SETTINGS)
    wanted, wanted_reports = simulated(own, draws, trainer)
    plans, reports = on_flower(own, draws, trainer)
    assert len(wanted) == ROUNDS
    assert plans == wanted
    assert reports == wanted_reports


def test_the_draws_are_worth_comparing() -> None:
    draws = Draws(json.loads(draws_json()))
    trainer = Losses({client: one["size"] for client, one in draws.recorded.items()})
    plans, reports = simulated(method("fedbalancer", SETTINGS), draws, trainer)
    assert len({plan.order.deadline_s for plan in plans}) > 5
    assert len({plan.order.loss_threshold for plan in plans}) > 5
    assert any(len(report) < len(plan.cohort) for plan, report in zip(plans, reports, strict=True))
