"""Rounds on a virtual clock.

The engine first works out who will finish, when, and after how many batches; only then are the clients that count
trained, as pure work that an executor may spread. Work whose result nobody would see is not done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.policies import ClientPolicies, of_client
from fedbalancer.client.round import ClientRound, decode_summaries, received
from fedbalancer.core.errors import TrainingDiverged
from fedbalancer.core.interfaces import Availability, DeviceModel, Executor
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import (
    UNDER_WAY,
    ClientReport,
    ClientWork,
    Evaluation,
    FailedClient,
    IndexArray,
    Ledger,
    Order,
    RoundPlan,
    RoundResult,
    Timings,
    TrainResult,
    Weights,
)
from fedbalancer.privacy.spending import RELEASES, Spending
from fedbalancer.server.suspensions import INVALID
from fedbalancer.simulation.attacks import Attackers
from fedbalancer.simulation.attempts import Attempts, RoundClock, simulate_attempts
from fedbalancer.simulation.classes import ClassCounts
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws, many
from fedbalancer.simulation.memory import Memories
from fedbalancer.simulation.pending import Pending, Reports, close_reports
from fedbalancer.simulation.seen import SeenLosses, seen_losses

SENT_NOTHING = ("download", "forward", "train", "unavailable", UNDER_WAY)
"""Where the deadline passed for clients that have not begun to send. One cut off in its upload may have said all; one
whose report counts late is counted with it."""
LOST_ROUND_S = 1.0
"""What a round takes in which nothing happened and selecting took no time: the clock must not stand still."""


class SimulatedEngine:
    """All clients of a task on modelled devices, under one method's client policies."""

    def __init__(
        self,
        policies: ClientPolicies,
        ledger: Ledger,
        executor: Executor,
        devices: DeviceModel,
        availability: Availability,
        model_bytes: int,
        up_bytes: int | None = None,
        encoded_bytes: int | None = None,
        window_s: float = 20.0,
        spending: Spending | None = None,
        attackers: Attackers | None = None,
        labels: Callable[[str], ArrayLike] | None = None,
        classes: ClassCounts | None = None,
        saves_losses: bool = True,
    ) -> None:
        """`model_bytes` travel to a client, `up_bytes` back (unless told, as many), for which an update is encoded as
        `encoded_bytes` (unless told, as these); `window_s` is what the selection of clients takes before every round;
        `spending` counts what clients release, and who may be asked again; `attackers` are clients that are not honest;
        `labels` says those of a client's samples, where they are selected by them; `classes` counts what is trained;
        without `saves_losses`, exact losses stay in memory: they are neither in snapshots nor in `seen_losses`.
        """
        self.policies = policies
        self.ledger = ledger
        self.executor = executor
        self.devices = devices
        self.availability = availability
        self.down_bytes = model_bytes
        self.up_bytes = model_bytes if up_bytes is None else up_bytes
        self._encoded_bytes = self.up_bytes if encoded_bytes is None else encoded_bytes
        self.window_s = window_s
        self.spending = spending
        self.attackers = attackers
        self.labels = labels
        self.classes = classes
        self.saves_losses = saves_losses
        self.memory = Memories(ledger)
        self.pending = Reports()
        self.seen_losses: SeenLosses | None = None
        """Those of the last round, for its record."""

    @cached_property
    def _everybody(self) -> IndexArray:
        return np.arange(len(self.ledger.clients))

    def available(self, clock_s: float) -> IndexArray:
        """Who is there at the end of the selection window, has nothing under way, and may be asked."""
        there = self._there(clock_s + self.window_s)
        if self.pending:
            there = there[~np.isin(there, self.ledger.rows(self.pending.clients))]
        return there if self.spending is None else self.spending.allowed(self.ledger, there)

    def _there(self, at_s: float) -> IndexArray:
        if isinstance(self.availability, AlwaysOn):  # a million questions with one answer
            return self._everybody
        return np.flatnonzero(many.are_available(self.availability, self.ledger.clients, at_s))

    def run(self, plan: RoundPlan, weights: Weights, clock_s: float) -> RoundResult:
        """One round: its outcome first, then the training of the clients that made it."""
        order, rows = plan.order, self.ledger.rows(plan.cohort)
        clock, late_counts = RoundClock(self.availability, clock_s + self.window_s), plan.late != "lost"
        draws = many.draw(self.devices, plan.cohort, order.round, self.down_bytes, self.up_bytes)
        rounds = [self._client(order, client, row) for client, row in zip(plan.cohort, rows.tolist(), strict=True)]
        self._look(order, rounds, draws, weights, clock, math.inf if late_counts else order.deadline_s)
        attempts = simulate_attempts(rounds, draws, order, clock, late_counts)
        accepted, stale, seconds = close_reports(plan, attempts, self.pending, clock.start_s)
        if seconds + self.window_s == 0:
            seconds = LOST_ROUND_S
        for place, (round, row) in enumerate(zip(rounds, rows.tolist(), strict=True)):
            if attempts.started[place]:
                round.timed(float(draws.batch_s[place]))
                round.uploaded(float(draws.upload_s[place]))
            self.memory.put(row, round.memory)
        timings = attempts.timings()
        coming = attempts.comes & ~accepted & late_counts
        places = np.flatnonzero(accepted | coming).tolist()
        trained = self._train(order, weights, [rounds[p].work(int(attempts.batches[p])) for p in places])
        # A run of the clock alone has none.
        self.seen_losses = seen_losses(trained) if self.saves_losses and len(weights) else None
        made = {
            p: self._report(rounds[p], int(rows[p]), attempts, p, t, timings[p])
            for p, t in zip(places, trained, strict=True)
        }
        if self.attackers is not None:
            made = {p: self.attackers.falsified(report, order) for p, report in made.items()}
        arrives_s = clock.start_s + attempts.elapsed_s
        late = [Pending(made[p], order.round, float(arrives_s[p])) for p in places if coming[p]]
        self.pending = self.pending.without(stale).and_these(late)
        arrived, unread = self._readable(
            [each.joining(order.round) for each in stale] + [made[p] for p in places if accepted[p]]
        )
        read = decode_summaries(sorted(arrived, key=lambda report: report.client), self.policies, order, self._size_of)
        missing = self._missing(plan, rounds, attempts, timings, accepted, coming)
        missing = tuple(sorted((*missing, *unread), key=lambda each: each.client)) if unread else missing
        came = len(arrived) + len(unread)
        up_bytes = self.up_bytes * (came if late_counts else int(attempts.makes_it.sum()))
        result = RoundResult(
            plan, read, missing, seconds, self.window_s, self.down_bytes * len(rows), up_bytes, self.pending.clients
        )
        if self.spending is not None:
            self.spending.note(result)
        return result

    @staticmethod
    def _missing(
        plan: RoundPlan,
        rounds: list[ClientRound],
        attempts: Attempts,
        timings: list[Timings],
        accepted: NDArray[np.bool_],
        coming: NDArray[np.bool_],
    ) -> tuple[FailedClient, ...]:
        """Who has no report in this round. The seconds of one that is under way are told with its report."""
        return tuple(
            FailedClient(plan.cohort[place], UNDER_WAY, samples=rounds[place].reported_samples)
            if coming[place]
            else FailedClient(
                plan.cohort[place], str(attempts.why[place]) or "late", timings[place], rounds[place].reported_samples
            )
            for place in np.flatnonzero(~accepted)
        )

    def evaluate(self, weights: Weights) -> Evaluation:
        return self.executor.evaluate(weights)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the engine must remember over a restart, as arrays."""
        arrays = self.memory.to_arrays(self.saves_losses)
        if self.spending is not None:
            arrays[RELEASES] = self.spending.to_array(self.ledger.clients)
        if self.classes is not None:
            arrays |= self.classes.to_arrays()
        return arrays | self.pending.to_arrays(self.ledger)

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take up a snapshot."""
        self.memory.load(arrays)
        self.pending = Reports.from_arrays(arrays, self.ledger)
        if self.spending is not None:
            self.spending.load(dict(zip(self.ledger.clients, arrays[RELEASES].tolist(), strict=True)))
        if self.classes is not None:
            self.classes.load(arrays)

    def _size_of(self, client: str) -> int:
        return int(self.ledger.size[self.ledger.position[client]])

    def _client(self, order: Order, client: str, row: int) -> ClientRound:
        policies = of_client(self.policies, partial(self.labels, client) if self.labels is not None else None)
        return ClientRound(policies, order, client, int(self.ledger.size[row]), self.memory.of(row))

    def _look(
        self,
        order: Order,
        rounds: list[ClientRound],
        draws: DeviceDraws,
        weights: Weights,
        clock: RoundClock,
        start_by_s: float,
    ) -> None:
        """The forward passes of those that must look, and may."""
        asking = np.array([place for place, round in enumerate(rounds) if round.needs_forward_pass], dtype=np.int64)
        ways_s = draws.download_s[asking] + draws.upload_s[asking]
        soonest_s = clock.elapsed_s([rounds[place].client for place in asking], ways_s).tolist()
        looking = [
            rounds[place]
            for place, soonest in zip(asking.tolist(), soonest_s, strict=True)
            if rounds[place].can_finish(soonest, start_by_s)
        ]
        if not looking:
            return
        with _naming_round(order):
            losses = self.executor.losses(weights, [round.client for round in looking])
        for round, found in zip(looking, losses, strict=True):
            round.look(found)

    def _train(self, order: Order, weights: Weights, works: list[ClientWork]) -> list[TrainResult]:
        with _naming_round(order):
            return self.executor.train(weights, works)

    def _readable(self, reports: list[ClientReport]) -> tuple[list[ClientReport], list[FailedClient]]:
        """The reports, and those that attackers made so that their release cannot be read: beside it nobody else's in
        the cohort could be, either."""
        if self.attackers is None:
            return reports, []
        check = self.policies.summary.fault
        problems = {report.client: check(report.summary.released, self._size_of(report.client)) for report in reports}
        unread = [
            FailedClient(report.client, INVALID, report.timings, problem=problem)
            for report in reports
            if (problem := problems[report.client])
        ]
        return [report for report in reports if not problems[report.client]], unread

    def _report(
        self, round: ClientRound, row: int, attempts: Attempts, place: int, trained: TrainResult, timings: Timings
    ) -> ClientReport:
        """What arrives of a client that made it, through the very bytes that travel."""
        order, layout = round.order, self.executor.layout
        noise = stream(order.seed, "noise", order.round, round.client)
        released = round.released(trained, float(attempts.draws.batch_s[place]), layout, noise)
        if isinstance(released.sent, bytes) and len(released.sent) != self._encoded_bytes:
            who = type(self.policies.compress).__name__
            raise ValueError(f"{who} sent {len(released.sent)} bytes but promised {self._encoded_bytes}")
        self.memory.put(row, released.memory)
        if self.classes is not None:
            self.classes.note(round.client, trained.seen)
        update = received(released.sent, self.policies.compress, layout, order, round.client)
        epochs = round.reported_epochs(int(attempts.batches[place]))
        weight = 1.0 if released.summary.withholds_counts else float(len(trained.seen))
        return ClientReport(round.client, update, weight, epochs, released.summary, timings)


@contextmanager
def _naming_round(order: Order) -> Iterator[None]:
    """A context in which a training that diverges is told with its round."""
    try:
        yield
    except TrainingDiverged as error:
        raise TrainingDiverged(f"round {order.round}, {error}") from error
