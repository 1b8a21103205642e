"""Rounds on a virtual clock.

The engine first works out who will finish, when, and after how many batches; only then are the clients that count
trained, as pure work that an executor may spread. Work whose result nobody would see is not done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.client.losses import updated_losses
from fedbalancer.devices import AlwaysOn
from fedbalancer.engine.memory import ClientMemory, from_arrays, to_arrays
from fedbalancer.errors import TrainingDiverged
from fedbalancer.methods import Method
from fedbalancer.protocols import Availability, DeviceModel, Draw, Executor
from fedbalancer.randomness import integer_seed, stream
from fedbalancer.server.expected import FORWARD_PASS_EPOCHS
from fedbalancer.types import (
    ClientReport,
    ClientWork,
    Evaluation,
    IndexArray,
    Ledger,
    Missing,
    Order,
    RoundPlan,
    RoundResult,
    Timings,
    Trained,
    Weights,
)

LOST_ROUND_S = 1.0
"""What a round takes in which nothing happened and selecting took no time: the clock must not stand still."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """A selected client's round as it will go: `batches` is 0 for one that will not make it."""

    client: str
    indices: IndexArray
    draw: Draw
    batches: int
    timings: Timings
    elapsed_s: float
    why: str = ""


@dataclass(frozen=True)
class Training:
    """The local training settings that are the task's, not the method's."""

    learning_rate: float
    clip_norm: float | None = None


class SimulatedEngine:
    """All clients of a task on modelled devices, under one method's client policies."""

    def __init__(
        self,
        method: Method,
        ledger: Ledger,
        executor: Executor,
        devices: DeviceModel,
        availability: Availability,
        training: Training,
        model_bytes: int,
        window_s: float = 20.0,
    ) -> None:
        self.method = method
        self.ledger = ledger
        self.executor = executor
        self.devices = devices
        self.availability = availability
        self.training = training
        self.down_bytes = model_bytes
        self.up_bytes = method.compress.encoded_bytes(executor.layout, model_bytes)
        self.window_s = window_s
        self.memory = {
            client: ClientMemory(None, float(total), int(count))
            for client, total, count in zip(ledger.clients, ledger.batch_s_sum, ledger.batch_s_count, strict=True)
        }
        self._everybody = np.arange(len(ledger.clients))
        self.size = dict(zip(ledger.clients, ledger.size.tolist(), strict=True))

    def available(self, clock_s: float) -> IndexArray:
        """Who is there at the end of the selection window."""
        if isinstance(self.availability, AlwaysOn):  # a million questions with one answer
            return self._everybody
        at_s = clock_s + self.window_s
        present = (self.availability.is_available(client, at_s) for client in self.ledger.clients)
        return np.flatnonzero(np.fromiter(present, dtype=bool, count=len(self.ledger.clients)))

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult:
        """One round: its outcome first, then the training of the clients that made it."""
        start_s = clock_s + self.window_s
        attempts = self._attempts(plan.order, plan.cohort, weights, start_s)
        accepted, seconds = close_round(plan, attempts)
        if seconds + self.window_s == 0:
            seconds = LOST_ROUND_S
        missing = tuple(_missing(attempt) for attempt in attempts if attempt.client not in accepted)
        winners = [attempt for attempt in attempts if attempt.client in accepted]
        reports = self._train(plan.order, winners, weights)
        for attempt in attempts:
            self.memory[attempt.client] = self.memory[attempt.client].timed(attempt.draw.batch_s)
        return RoundResult(plan, reports, missing, seconds, self.window_s)

    def evaluate(self, weights: Weights) -> Evaluation:
        return self.executor.evaluate(weights)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the engine must remember over a restart, as arrays."""
        return to_arrays(self.memory)

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take up a snapshot."""
        self.memory = from_arrays(self.ledger.clients, arrays)

    def _attempts(self, order: Order, cohort: Sequence[str], weights: Weights, start_s: float) -> list[Attempt]:
        draws = {client: self.devices.draw(client, order.round, self.down_bytes, self.up_bytes) for client in cohort}
        fresh = self.method.forward_pass == "every"
        chosen = {client: self._select(client, order, None if fresh else self.memory[client]) for client in cohort}

        def arrives(client: str) -> bool:
            arrival_s = self.availability.elapsed_s(client, start_s, draws[client].download_s)
            return math.isfinite(arrival_s) and arrival_s <= order.deadline_s

        # Only a client that has the weights in time can look at its samples.
        looking = [client for client in cohort if chosen[client] is None and arrives(client)]
        for client, losses in zip(looking, self._losses(order, weights, looking), strict=True):
            memory = self.memory[client]
            self.memory[client] = ClientMemory(losses, memory.batch_s_sum, memory.batch_s_count)
            chosen[client] = self._select(client, order, self.memory[client])
        attempts = []
        for client in cohort:
            indices = chosen[client]
            if indices is None:
                indices = np.zeros(0, dtype=np.int64)
            passed = client in looking and (fresh or len(indices) < self.size[client])
            attempts.append(self._attempt(client, order, indices, draws[client], passed, start_s))
        return attempts

    def _select(self, client: str, order: Order, memory: ClientMemory | None) -> IndexArray | None:
        rng = stream(order.seed, "samples", order.round, client)
        losses = None if memory is None else memory.losses
        return self.method.samples.select(self.size[client], losses, self.memory[client].batch_s, order, rng)

    def _losses(self, order: Order, weights: Weights, clients: list[str]) -> list[Any]:
        if not clients:
            return []
        try:
            return self.executor.losses(weights, clients)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {order.round}, {error}") from error

    def _attempt(
        self, client: str, order: Order, indices: IndexArray, draw: Draw, forward_pass: bool, start_s: float
    ) -> Attempt:
        all_batches = -(-self.size[client] // order.batch_size)
        per_epoch = max(-(-len(indices) // order.batch_size), 1)
        forward_s = FORWARD_PASS_EPOCHS * all_batches * draw.batch_s if forward_pass else 0.0
        before_s = draw.download_s + forward_s

        def elapsed_s(batches: int) -> float:
            busy_s = before_s + batches * draw.batch_s + draw.upload_s
            return self.availability.elapsed_s(client, start_s, busy_s)

        batches = 0
        if len(indices):
            batches = self.method.work.batches(elapsed_s, order.deadline_s, per_epoch, order.epochs)
        trained = batches or (per_epoch * order.epochs if len(indices) else 0)
        total_s = elapsed_s(trained)
        train_s = trained * draw.batch_s
        paused_s = max(total_s - (before_s + train_s + draw.upload_s), 0.0)
        timings = Timings(draw.download_s, forward_s, train_s, draw.upload_s, paused_s)
        if batches and math.isfinite(total_s):
            return Attempt(client, indices, draw, batches, timings, total_s)
        ends = {"download": draw.download_s, "forward": before_s, "train": before_s + train_s}
        reached = (
            phase
            for phase, busy_s in ends.items()
            if self.availability.elapsed_s(client, start_s, busy_s) > order.deadline_s
        )
        why = next(reached, "upload") if math.isfinite(total_s) else "unavailable"
        return Attempt(client, indices, draw, 0, timings, total_s, why)

    def _train(self, order: Order, winners: list[Attempt], weights: Weights) -> tuple[ClientReport, ...]:
        works = [
            ClientWork(
                client=attempt.client,
                indices=attempt.indices,
                batches=attempt.batches,
                batch_size=order.batch_size,
                learning_rate=self.training.learning_rate,
                mu=self.method.mu,
                clip_norm=self.training.clip_norm,
                seed=integer_seed(order.seed, "train", order.round, attempt.client),
            )
            for attempt in winners
        ]
        try:
            results = self.executor.train(weights, works)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {order.round}, {error}") from error
        return tuple(self._report(order, attempt, t) for attempt, t in zip(winners, results, strict=True))

    def _report(self, order: Order, attempt: Attempt, trained: Trained) -> ClientReport:
        client, memory = attempt.client, self.memory[attempt.client]
        losses = updated_losses(memory.losses, self.size[client], trained.seen, trained.losses)
        self.memory[client] = ClientMemory(losses, memory.batch_s_sum, memory.batch_s_count)
        noise = stream(order.seed, "noise", order.round, client)
        summary = self.method.summary.summarize(losses, trained.seen, attempt.draw.batch_s, order, noise)
        rounding = stream(order.seed, "compress", order.round, client)
        return ClientReport(
            client=client,
            update=self.method.compress.apply(trained.update, self.executor.layout, rounding),
            weight=float(len(trained.seen)),
            epochs=attempt.batches / max(-(-len(attempt.indices) // order.batch_size), 1),
            summary=summary,
            timings=attempt.timings,
        )


def close_round(plan: RoundPlan, attempts: Sequence[Attempt]) -> tuple[set[str], float]:
    """Who is accepted, and when the round closes: at the quorum-th report or at the deadline.

    Without a deadline, a quorum that can never be reached closes with the last report that comes.
    """
    finished = sorted((a for a in attempts if a.batches), key=lambda a: (a.elapsed_s, a.client))
    accepted = finished[: plan.quorum]
    if len(accepted) < plan.quorum and math.isfinite(plan.order.deadline_s):
        seconds = plan.order.deadline_s
    else:
        seconds = accepted[-1].elapsed_s if accepted else 0.0
    return {attempt.client for attempt in accepted}, seconds


def _missing(attempt: Attempt) -> Missing:
    return Missing(attempt.client, attempt.why or "late", attempt.timings, len(attempt.indices))
