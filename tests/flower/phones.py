"""Clients of the fake grid that run the real client code on a small regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flower.fakegrid import Clock, FakeGrid, make_context
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedbalancer.flower import Strategy, balanced
from fedbalancer.flower.grid_engine import Waiting
from fedbalancer.flower.introduction import answer_greeting
from fedbalancer.flower.messages import EVALUATE, HELLO

FEATURES = 4
Change = Callable[[Message], Any]
"""What becomes of a reply to a train message: another one, a list of (seconds later, reply), or None for no reply."""


class Phone:
    """A client that answers `way_s` after it was asked, plus what its batches take. In its greeting it says that they
    take `said_s`, which may be wrong, or 0 for nothing."""

    def __init__(
        self, number: int, batch_s: float = 0.5, way_s: float = 2.0, change: Change | None = None,
        evaluates: bool = True, said_s: float | None = None,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(number)
        self.x = rng.normal(size=(30 + 10 * number, FEATURES))
        self.y = self.x @ np.arange(1, FEATURES + 1)
        self.batch_s, self.way_s, self.change, self.evaluates = batch_s, way_s, change, evaluates
        self.said_s = batch_s if said_s is None else said_s
        self.context = make_context(number + 2, **{"client-id": f"c{number}"})
        self.orders: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.now = 0.0

    def __call__(self, message: Message, sent_s: float) -> list[tuple[float, Message]]:
        self.now = 0.0
        if message.metadata.message_type == HELLO:
            latencies = [self.said_s] * 10 if self.said_s else []
            reply = answer_greeting(message, self.context, len(self.y), lambda *_: latencies, clock=lambda: self.now)
            return [(sent_s + self.way_s, reply)]
        if message.metadata.message_type == EVALUATE:
            return [(sent_s + self.way_s, self.evaluate(message))] if self.evaluates else []
        reply = self.train(message)
        changed = reply if self.change is None else self.change(reply)
        if changed is None:
            return []
        many = changed if isinstance(changed, list) else [(0.0, changed)]
        return [(sent_s + self.now + self.way_s + later, one) for later, one in many]

    def now_s(self) -> float:
        return self.now

    def computed(self, batches: float) -> None:
        """The seconds of its batches are added where they are trained."""

    def train(self, message: Message) -> Message:
        work = balanced(message, self.context, size=len(self.y), clock=self)
        self.orders.append(work.instruction)
        weights = work.arrays["w"].numpy().astype(np.float64)
        work.select(forward=lambda: self.losses(weights))
        found = np.full(len(self.y), np.nan)
        for rows in work.batches():
            self.now += self.batch_s
            before = self.losses(weights)[rows]
            found[rows] = np.where(np.isnan(found[rows]), before, found[rows])
            error = self.x[rows] @ weights - self.y[rows]
            weights -= work.order.learning_rate * 2 * self.x[rows].T @ error / len(rows)
        return work.reply(ArrayRecord({"w": Array(weights.astype(np.float32))}), losses=found, metrics=self.metrics)

    def evaluate(self, message: Message) -> Message:
        loss = float(self.losses(message.content.array_records["arrays"]["w"].numpy()).mean())
        metrics = MetricRecord({"num-examples": len(self.y), "accuracy": 0.5, "loss": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def losses(self, weights: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((self.x @ weights - self.y) ** 2)


class World:
    """Phones behind a fake grid, and the logged events; `kind` is the class of the strategy, `made` the strategy."""

    def __init__(self, *phones: Phone, kind: type[Strategy] = Strategy) -> None:
        self.kind = kind
        self.clock = Clock()
        self.phones = phones
        self.grid = FakeGrid(self.clock, {number + 2: phone for number, phone in enumerate(phones)})
        self.events: list[tuple[str, dict[str, Any]]] = []

    def strategy(self, method: Any = "fedbalancer", **options: Any) -> Strategy:
        waiting = Waiting(clock=self.clock, sleep=self.clock.sleep, background=False)
        given = {"clients_per_round": len(self.phones), "epochs": 3, "batch_size": 10, "learning_rate": 0.05}
        given |= {"min_clients": len(self.phones), "waiting": waiting, "log": self.told}
        self.made = self.kind(method, **(given | options))
        return self.made

    def told(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def start(self, rounds: int, method: Any = "fedbalancer", evaluate_fn: Any = None, **options: Any) -> Any:
        arrays = ArrayRecord({"w": Array(np.zeros(FEATURES, dtype=np.float32))})
        strategy = self.strategy(method, **options)
        return strategy.start(self.grid, arrays, num_rounds=rounds, timeout=500, evaluate_fn=evaluate_fn)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


def weights_of(result: Any) -> NDArray[Any]:
    return np.asarray(result.arrays["w"].numpy())
