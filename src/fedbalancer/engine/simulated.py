"""Rounds on a virtual clock.

The engine first works out who will finish, when, and after how many batches; only then are the clients that count
trained, as pure work that an executor may spread. Work whose result nobody would see is not done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedbalancer.client.compress import NoCompression
from fedbalancer.client.losses import updated_losses
from fedbalancer.devices import AlwaysOn, many
from fedbalancer.engine.attempts import Attempts, RoundClock, attempted, close_round
from fedbalancer.engine.memory import Memories
from fedbalancer.errors import TrainingDiverged
from fedbalancer.methods import Method
from fedbalancer.protocols import Availability, DeviceModel, Executor
from fedbalancer.randomness import integer_seed, stream
from fedbalancer.types import (
    ClientReport,
    ClientWork,
    Evaluation,
    FloatArray,
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

_NOTHING: IndexArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Training:
    """The local training settings that are the task's, not the method's."""

    learning_rate: float
    clip_norm: float | None = None


@dataclass(frozen=True, eq=False)
class _Winner:
    """A client that made it: its ledger row, its samples, and how its round went."""

    client: str
    row: int
    indices: IndexArray
    batches: int
    epochs: float
    batch_s: float
    timings: Timings


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
        up_bytes: int | None = None,
        window_s: float = 20.0,
    ) -> None:
        self.method = method
        self.ledger = ledger
        self.executor = executor
        self.devices = devices
        self.availability = availability
        self.training = training
        self.down_bytes = model_bytes
        self.up_bytes = model_bytes if up_bytes is None else up_bytes
        self.window_s = window_s
        self.memory = Memories(ledger)
        self._samples = np.arange(ledger.size.max(initial=0))

    @cached_property
    def _everybody(self) -> IndexArray:
        return np.arange(len(self.ledger.clients))

    def available(self, clock_s: float) -> IndexArray:
        """Who is there at the end of the selection window."""
        if isinstance(self.availability, AlwaysOn):  # a million questions with one answer
            return self._everybody
        return np.flatnonzero(many.are_available(self.availability, self.ledger.clients, clock_s + self.window_s))

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult:
        """One round: its outcome first, then the training of the clients that made it."""
        rows = self.ledger.rows(plan.cohort)
        attempts, indices = self._attempts(plan, rows, weights, RoundClock(self.availability, clock_s + self.window_s))
        accepted, seconds = close_round(plan, attempts)
        if seconds + self.window_s == 0:
            seconds = LOST_ROUND_S
        timings = attempts.timings()
        winners = self._winners(attempts, rows, indices, np.flatnonzero(accepted), timings)
        reports = self._train(plan.order, winners, weights)
        self.memory.timed(rows, attempts.draws.batch_s)
        missing = tuple(
            Missing(plan.cohort[place], str(attempts.why[place]) or "late", timings[place], len(indices[place]))
            for place in np.flatnonzero(~accepted)
        )
        down_bytes = self.down_bytes * len(rows)
        up_bytes = self.up_bytes * int(attempts.makes_it.sum())
        return RoundResult(plan, reports, missing, seconds, self.window_s, down_bytes, up_bytes)

    def evaluate(self, weights: Weights) -> Evaluation:
        return self.executor.evaluate(weights)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the engine must remember over a restart, as arrays."""
        return self.memory.to_arrays()

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take up a snapshot."""
        self.memory.load(arrays)

    def _attempts(
        self, plan: RoundPlan, rows: IndexArray, weights: Weights, clock: RoundClock
    ) -> tuple[Attempts, list[IndexArray]]:
        """How the round goes for everybody, and the samples that everybody selected."""
        order, clients, sizes = plan.order, plan.cohort, self.ledger.size[rows]
        draws = many.draw(self.devices, clients, order.round, self.down_bytes, self.up_bytes)
        batch_s = self.memory.batch_s(rows).tolist()
        fresh = self.method.forward_pass == "every"

        def select(place: int, losses: FloatArray | None) -> IndexArray | None:
            rng = stream(order.seed, "samples", order.round, clients[place])
            return self.method.samples.select(int(sizes[place]), losses, batch_s[place], order, rng)

        chosen = [select(place, None if fresh else self.memory.losses(row)) for place, row in enumerate(rows.tolist())]
        asking = np.array([place for place, indices in enumerate(chosen) if indices is None], dtype=np.int64)
        # Only a client that has the weights in time can look at its samples.
        arrival_s = clock.elapsed_s([clients[place] for place in asking], draws.download_s[asking])
        looking = asking[np.isfinite(arrival_s) & (arrival_s <= order.deadline_s)].tolist()
        for place, losses in zip(looking, self._losses(order, weights, [clients[p] for p in looking]), strict=True):
            self.memory.keep(int(rows[place]), losses)
            chosen[place] = select(place, losses)
        indices = [_NOTHING if found is None else found for found in chosen]
        samples = np.array([len(found) for found in indices], dtype=np.int64)
        looked = np.zeros(len(rows), dtype=bool)
        looked[looking] = True
        if not fresh:
            looked &= samples < sizes
        return attempted(clients, sizes, samples, looked, draws, self.method.work, order, clock), indices

    def _losses(self, order: Order, weights: Weights, clients: list[str]) -> list[FloatArray]:
        if not clients:
            return []
        try:
            return self.executor.losses(weights, clients)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {order.round}, {error}") from error

    @staticmethod
    def _winners(
        attempts: Attempts, rows: IndexArray, indices: list[IndexArray], places: IndexArray, timings: list[Timings]
    ) -> list[_Winner]:
        epochs = (attempts.batches / attempts.per_epoch).tolist()
        batches, batch_s = attempts.batches.tolist(), attempts.draws.batch_s.tolist()
        return [
            _Winner(attempts.clients[p], int(rows[p]), indices[p], batches[p], epochs[p], batch_s[p], timings[p])
            for p in places.tolist()
        ]

    def _train(self, order: Order, winners: list[_Winner], weights: Weights) -> tuple[ClientReport, ...]:
        works = [
            ClientWork(
                client=winner.client,
                indices=winner.indices,
                batches=winner.batches,
                batch_size=order.batch_size,
                learning_rate=self.training.learning_rate,
                mu=self.method.mu,
                clip_norm=self.training.clip_norm,
                seed=integer_seed(order.seed, "train", order.round, winner.client),
                epoch_batches=order.epoch_batches,
            )
            for winner in winners
        ]
        try:
            results = self.executor.train(weights, works)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"round {order.round}, {error}") from error
        return tuple(self._report(order, winner, t) for winner, t in zip(winners, results, strict=True))

    def _report(self, order: Order, winner: _Winner, trained: Trained) -> ClientReport:
        losses = self._new_losses(winner, trained)
        self.memory.keep(winner.row, losses)
        update = self._sent(order, winner, trained.update)
        noise = stream(order.seed, "noise", order.round, winner.client)
        summary = self.method.summary.summarize(losses, trained.seen, winner.batch_s, order, noise)
        return ClientReport(winner.client, update, float(len(trained.seen)), winner.epochs, summary, winner.timings)

    def _new_losses(self, winner: _Winner, trained: Trained) -> FloatArray:
        size = int(self.ledger.size[winner.row])
        if np.array_equal(trained.seen, self._samples[:size]):  # nothing of the old list is left, so nothing is copied
            return trained.losses
        return updated_losses(self.memory.losses(winner.row), size, trained.seen, trained.losses)

    def _sent(self, order: Order, winner: _Winner, update: Weights) -> Weights:
        """The update as it arrives, through the very bytes that travel; the client remembers what it keeps back."""
        if isinstance(self.method.compress, NoCompression) or not len(update):
            return update
        compress, layout = self.method.compress, self.executor.layout
        seed = integer_seed(order.seed, "compress", order.round, winner.client)
        payload, residual = compress.encode(update, layout, seed, self.memory.residual(winner.row))
        if len(payload) != self.up_bytes:
            raise ValueError(f"{type(compress).__name__} sent {len(payload)} bytes but promised {self.up_bytes}")
        self.memory.keep_back(winner.row, residual)
        return compress.decode(payload, layout, seed)
