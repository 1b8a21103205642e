"""The engine that runs rounds on a virtual clock.

The engine first predicts who finishes, when, and after how many batches. Only then does it train the clients whose
reports count. That training is pure work, which an executor may distribute; results that nobody uses are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbalancer.client.policies import ClientPolicies, bind_labels
from fedbalancer.client.round import MODEL, ClientMemory, ClientRound, decode_summaries, decode_update
from fedbalancer.client.training import check_order_arrays, start_model
from fedbalancer.core.cost import LatencyScale
from fedbalancer.core.interfaces import Availability, DeviceModel, Executor
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import (
    FOLDED,
    FORWARD_PASS_EPOCHS,
    UNDER_WAY,
    ClientReport,
    ClientWork,
    DivergedTraining,
    Evaluation,
    FailedClient,
    FloatArray,
    FoldedUpdates,
    IndexArray,
    Ledger,
    Order,
    Part,
    RoundPlan,
    RoundResult,
    Timings,
    TrainResult,
    UpdateFold,
    Weights,
)
from fedbalancer.privacy.accounting import RELEASES, Spending
from fedbalancer.server.report_check import INVALID
from fedbalancer.simulation.attacks import Attackers
from fedbalancer.simulation.attempts import (
    Attempts,
    RoundClock,
    arrivals_of,
    close_with_pending,
    join_attempts,
    simulate_attempts,
)
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws, are_available, draw_devices
from fedbalancer.simulation.divergence import diverged_report
from fedbalancer.simulation.folding import Folding
from fedbalancer.simulation.interruptions import (
    interrupt,
    interrupted_batches,
    train_from_own_models,
    without_downloads,
)
from fedbalancer.simulation.local_costs import LocalCosts
from fedbalancer.simulation.state import ClassCounts, Memories, PendingReport, PendingReports, SeenLosses, seen_losses

by_client = attrgetter("client")

SENT_NOTHING = ("download", "forward", "train", "unavailable", UNDER_WAY)
"""Phases in which a failed client has not sent anything yet.

A client that fails during its upload may have sent everything. A client whose report counts late is charged then.
"""
KEEP_BYTES = 256 * 1024**2
"""Largest size of a round's updates in memory, if the aggregator can add them one by one."""
LOST_ROUND_S = 1.0
"""Duration of a round without any event or selection window, so that the clock always advances."""


class SimulatedEngine:
    """Simulates all clients of a task on modelled devices.

    Args:
        policies: The method's client policies.
        ledger: The server's ledger at the start.
        executor: Trains clients and evaluates models.
        devices: Draws batch latencies and transfer times.
        availability: When each client may work.
        model_bytes: Bytes of the model that a client downloads.
        up_bytes: Bytes that a client uploads. Default: `model_bytes`.
        encoded_bytes: Bytes of an encoded update. Default: `up_bytes`.
        window_s: Seconds that client selection takes before each round.
        check_in_s: Seconds until a free place looks for a client again if none is available (asynchronous methods).
        spending: Counts private releases and excludes clients that have spent their budget.
        attackers: The clients that are not honest.
        labels: Returns the labels of a client's samples, for policies that select by label.
        classes: Counts the classes that are trained.
        saves_losses: Whether snapshots and `seen_losses` may contain exact losses.
        scale: How the latencies of `devices` were scaled. Default: they are as published.
        costs: Bytes and seconds of a method that does not train the whole model plainly.
    """

    def __init__(
        self, policies: ClientPolicies, ledger: Ledger, executor: Executor, devices: DeviceModel,
        availability: Availability, model_bytes: int, up_bytes: int | None = None, encoded_bytes: int | None = None,
        window_s: float = 20.0, check_in_s: float = 20.0, spending: Spending | None = None,
        attackers: Attackers | None = None, labels: Callable[[str], ArrayLike] | None = None,
        classes: ClassCounts | None = None, saves_losses: bool = True, scale: LatencyScale | None = None,
        costs: LocalCosts | None = None,
    ) -> None:  # fmt: skip
        self.policies = policies
        self.ledger = ledger
        self.executor = executor
        self.devices = devices
        self.availability = availability
        self.down_bytes = model_bytes
        self.up_bytes = model_bytes if up_bytes is None else up_bytes
        self._encoded_bytes = self.up_bytes if encoded_bytes is None else encoded_bytes
        self.window_s, self.check_in_s = window_s, check_in_s
        self.spending = spending
        self.attackers = attackers
        self.labels = labels
        self.classes = classes
        self.saves_losses = saves_losses
        self._forward_epochs = FORWARD_PASS_EPOCHS if scale is None else scale.forward_epochs
        self._short_batches = scale if scale is not None and scale.counts_samples else None
        self._keeps_interrupted = policies.train.cache_rounds is not None
        self.costs = costs
        self.memory = Memories(ledger)
        self.pending = PendingReports()
        self.keep_bytes = KEEP_BYTES
        self.seen_losses: SeenLosses | None = None
        """Quantiles of the last round's losses, for its record."""

    @cached_property
    def _all_rows(self) -> IndexArray:
        return np.arange(len(self.ledger.clients))

    def available(self, clock_s: float) -> IndexArray:
        """Return the ledger rows of the clients that can be selected.

        These are available at the end of the selection window, have no pending report, and have privacy budget left.

        Args:
            clock_s: Second on the run's clock at which the selection window starts.
        """
        rows = self._available_of(self._all_rows, clock_s + self.window_s)
        return rows[~np.isin(rows, self.ledger.rows(self.pending.clients))] if self.pending else rows

    def run(
        self, plan: RoundPlan, weights: Weights, clock_s: float, fold: Callable[[], UpdateFold | None] | None = None
    ) -> RoundResult:
        """Simulate one round: predict its outcome, then train the clients whose reports count.

        Args:
            plan: The server's plan.
            weights: The global model.
            clock_s: Second on the run's clock at which the selection window starts.
            fold: Makes the fold that adds updates if they are too large to keep; it may make none.

        Returns:
            The reports, the failed clients, and the duration of the round.
        """
        order, late_counts = plan.order, plan.late != "lost"
        started = [self._start(plan, plan.cohort, weights, clock_s)]
        if plan.concurrency:
            started += self._refill(plan, started[0].attempts, weights, clock_s)
            plan = plan.start_from_reserve([client for group in started[1:] for client in group.attempts.clients])
        rounds = sorted((each for group in started for each in group.rounds), key=by_client)
        attempts = join_attempts([group.attempts for group in started]) if len(started) > 1 else started[0].attempts
        rows, start_s = self.ledger.rows(plan.cohort), clock_s + self.window_s
        accepted, stale, seconds = self._close(plan, attempts, start_s)
        for place, (client_round, row) in enumerate(zip(rounds, rows.tolist(), strict=True)):
            if attempts.started[place]:
                client_round.note_batch_s(float(attempts.draws.batch_s[place]))
                client_round.note_upload_s(float(attempts.draws.upload_s[place]))
            self.memory.put(row, client_round.memory)
        timings = attempts.timings()
        late = attempts.will_report & ~accepted & late_counts
        places = np.flatnonzero(accepted | late).tolist()
        works = {p: rounds[p].work(int(attempts.batches[p])) for p in places if not rounds[p].problem}
        make = partial(self._report, rounds, attempts, timings)
        folding = self._start_fold(fold, weights, list(works.values()))
        trained, reports = [], {}
        for place, each in self._train_places(rounds, places, works, weights, folding is not None):
            if isinstance(each, DivergedTraining):
                reports[place] = self._diverged(rounds[place], each, timings[place], int(rows[place]))
                continue
            report, memory = make(place, each)
            self.memory.put(int(rows[place]), memory)
            if self.classes is not None:
                self.classes.note(report.client, each.seen)
            reports[place] = report if folding is None else folding.add(report)
            trained.append(each if folding is None else replace(each, update=FOLDED))
        self._interrupt(rounds, attempts, accepted, seconds, weights, start_s)
        reports |= self._falsified({place: each for place, each in reports.items() if not each.problem}, order, weights)
        # A run that only simulates the clock has no losses.
        self.seen_losses = seen_losses(trained) if self.saves_losses and len(weights) else None
        pending = [
            PendingReport(reports[p], order.round, start_s + float(attempts.arrives_s[p])) for p in places if late[p]
        ]
        self.pending = self.pending.remove(stale).add(pending)
        received = [each.join_round(order.round) for each in stale] + [reports[p] for p in places if accepted[p]]
        arrived, unreadable = self._split_unreadable([each for each in received if not each.problem])
        read = decode_summaries(sorted(arrived, key=by_client), self.policies, order, self._size_of)
        read = tuple(sorted([*read, *(each for each in received if each.problem)], key=by_client))
        failed = self._failed_clients(plan, rounds, attempts, timings, accepted, late, unreadable)
        uploaded = [rounds[p] for p in np.flatnonzero(attempts.is_in_time).tolist()] if not late_counts else received
        down_bytes, up_bytes = self._count_bytes(rounds, uploaded)
        again = partial(self._report_again, weights, make, works)
        folded = None if folding is None else FoldedUpdates(folding.fold, folding.weights, again)
        result = RoundResult(
            plan, read, failed, seconds, self.window_s, down_bytes, up_bytes, self.pending.clients, folded=folded
        )
        if self.spending is not None:
            self.spending.note(result)
        return result

    def _start(
        self, plan: RoundPlan, clients: Sequence[str], weights: Weights, clock_s: float, after_s: float = 0.0
    ) -> StartedClients:
        """Start clients `after_s` seconds after the start of the round, and predict when they finish."""
        order, late_counts = plan.order, plan.late != "lost"
        clock = RoundClock(self.availability, clock_s + self.window_s + after_s)
        rows = self.ledger.rows(tuple(clients)).tolist()
        rounds = [self._client_round(order, client, row) for client, row in zip(clients, rows, strict=True)]
        draws = self._draw(order, rounds)
        self._forward_passes(order, rounds, draws, weights, clock, math.inf if late_counts else order.deadline_s)
        attempts = simulate_attempts(rounds, draws, order, clock, late_counts, self._short_batches, after_s)
        return StartedClients(rounds, attempts)

    def _close(
        self, plan: RoundPlan, attempts: Attempts, start_s: float
    ) -> tuple[NDArray[np.bool_], list[PendingReport], float]:
        """Return what `close_with_pending` returns, with seconds that let the clock advance."""
        accepted, stale, seconds = close_with_pending(plan, attempts, self.pending, start_s)
        is_step = plan.late == "counts" and not plan.concurrency and (stale or accepted.any())
        if seconds + self.window_s == 0 and not is_step:
            seconds = self.check_in_s if plan.late == "counts" else LOST_ROUND_S
        return accepted, stale, seconds

    def _refill(self, plan: RoundPlan, cohort: Attempts, weights: Weights, clock_s: float) -> list[StartedClients]:
        """Fill every place that becomes free before the round closes, and return the clients that started.

        A free place is filled at once with the first available client of the reserve. While none is available, it
        looks again every `check_in_s` seconds. A client takes part at most once in a round.
        """
        start_s, deadline_s = clock_s + self.window_s, plan.order.deadline_s
        reserve = self.ledger.rows(tuple(client for client in plan.reserve if client not in set(self.pending.clients)))
        arrivals = [(each.arrives_s - start_s, each.report.client) for each in self.pending] + arrivals_of(cohort)
        heapify(arrivals)
        started: list[StartedClients] = []
        free, now_s, count = plan.concurrency - len(self.pending) - len(plan.cohort), 0.0, 0
        while True:
            rows = self._available_of(reserve, start_s + now_s)[:free] if free > 0 else reserve[:0]
            if len(rows):
                clients = tuple(self.ledger.clients[row] for row in rows.tolist())
                started.append(self._start(plan, clients, weights, clock_s, now_s))
                for arrival in arrivals_of(started[-1].attempts):
                    heappush(arrivals, arrival)
                reserve, free = reserve[~np.isin(reserve, rows)], free - len(rows)
            check_s = now_s + self.check_in_s if free > 0 and len(reserve) else math.inf
            if not arrivals or (count and min(check_s, arrivals[0][0]) > deadline_s):
                return started
            if check_s < arrivals[0][0]:
                now_s = check_s
                continue
            now_s, free, count = max(heappop(arrivals)[0], now_s), free + 1, count + 1
            if count >= plan.quorum or now_s >= deadline_s:
                return started

    def _available_of(self, rows: IndexArray, at_s: float) -> IndexArray:
        """Return those of some clients that are available and have privacy budget left."""
        if not isinstance(self.availability, AlwaysOn):  # faster for a million clients
            every = self.ledger.clients
            clients = every if rows is self._all_rows else [every[row] for row in rows.tolist()]
            rows = rows[are_available(self.availability, clients, at_s)]
        return rows if self.spending is None else self.spending.allowed(self.ledger, rows)

    @staticmethod
    def _failed_clients(
        plan: RoundPlan, rounds: list[ClientRound], attempts: Attempts, timings: list[Timings],
        accepted: NDArray[np.bool_], late: NDArray[np.bool_], unreadable: list[FailedClient],
    ) -> tuple[FailedClient, ...]:  # fmt: skip
        """Return the clients without a report in this round; those still working get timings with their report."""

        def failed(place: int) -> FailedClient:
            client, samples = plan.cohort[place], rounds[place].reported_samples
            if late[place]:
                return FailedClient(client, UNDER_WAY, samples=samples)
            return FailedClient(client, str(attempts.failed_phase[place]) or "late", timings[place], samples)

        without_report = map(failed, np.flatnonzero(~accepted).tolist())
        return tuple(sorted([*without_report, *unreadable], key=by_client))

    def evaluate(self, weights: Weights) -> Evaluation:
        """Evaluate a model on the test data."""
        return self.executor.evaluate(weights)

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as arrays."""
        arrays = self.memory.to_arrays(self.saves_losses)
        if self.spending is not None:
            arrays[RELEASES] = self.spending.to_array(self.ledger.clients)
        if self.classes is not None:
            arrays |= self.classes.to_arrays()
        if self.attackers is not None:
            arrays |= self.attackers.to_arrays()
        return arrays | self.pending.to_arrays(self.ledger)

    def restore(self, arrays: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self.memory.load(arrays)
        self.pending = PendingReports.from_arrays(arrays, self.ledger)
        if self.spending is not None:
            self.spending.load(dict(zip(self.ledger.clients, arrays[RELEASES].tolist(), strict=True)))
        if self.classes is not None:
            self.classes.load(arrays)
        if self.attackers is not None:
            self.attackers.load(arrays)

    def _noise(self, order: Order, client: str) -> np.random.Generator:
        """Return the source of the noise on a client's statistics."""
        return stream(order.seed, "noise", order.round, client)

    def _size_of(self, client: str) -> int:
        return int(self.ledger.size[self.ledger.position[client]])

    def _client_round(self, order: Order, client: str, row: int) -> ClientRound:
        policies = bind_labels(self.policies, partial(self.labels, client) if self.labels is not None else None)
        part = None if self.costs is None else self.costs.part(client, order)
        size, memory = int(self.ledger.size[row]), self.memory.of(row)
        return ClientRound(policies, order, client, size, memory, part=part, forward_epochs=self._forward_epochs)

    def _draw(self, order: Order, rounds: list[ClientRound]) -> DeviceDraws:
        """Draw the times of the round's clients."""
        clients = [client_round.client for client_round in rounds]
        if self.costs is not None or order.arrays:
            check_order_arrays(order.arrays, self.policies.train, self.executor.layout)
        if self.costs is None:
            draws = draw_devices(self.devices, clients, order.round, self.down_bytes, self.up_bytes)
            return without_downloads(rounds, draws) if self._keeps_interrupted else draws
        return self.costs.draw(self.devices, clients, order.round, [client_round.part for client_round in rounds])

    def _forward_passes(
        self, order: Order, rounds: list[ClientRound], draws: DeviceDraws, weights: Weights, clock: RoundClock,
        start_by_s: float,
    ) -> None:  # fmt: skip
        """Run the forward passes of the clients that need one and could still finish."""
        asking = np.array([place for place, each in enumerate(rounds) if each.needs_forward_pass], dtype=np.int64)
        transfer_s = draws.download_s[asking] + draws.upload_s[asking]
        soonest_s = clock.elapsed_s([rounds[place].client for place in asking], transfer_s).tolist()
        chosen = [
            rounds[place]
            for place, soonest in zip(asking.tolist(), soonest_s, strict=True)
            if rounds[place].can_finish(soonest, start_by_s)
        ]
        if not chosen:
            return
        for client_round, losses in zip(chosen, self._losses(weights, chosen), strict=True):
            if isinstance(losses, DivergedTraining):
                client_round.fail_forward_pass(losses.problem)
            else:
                client_round.add_forward_pass(losses)

    def _count_bytes(
        self, rounds: list[ClientRound], uploaded: Sequence[ClientRound | ClientReport]
    ) -> tuple[int, int]:
        """Return the bytes that all clients download, and those that some of them upload."""
        if self.costs is None:
            downloads = sum(each.continued is None for each in rounds)
            return self.down_bytes * downloads, self.up_bytes * len(uploaded)
        masks = [each.part.mask if isinstance(each.part, Part) else each.part for each in (*rounds, *uploaded)]
        down_bytes = sum(self.costs.download_bytes(mask) for mask in masks[: len(rounds)])
        return down_bytes, sum(self.costs.upload_bytes(mask) for mask in masks[len(rounds) :])

    def _losses(self, weights: Weights, rounds: list[ClientRound]) -> Sequence[FloatArray | DivergedTraining]:
        """Return the losses of the model that each client starts from."""
        clients = [client_round.client for client_round in rounds]
        if all(client_round.part is None for client_round in rounds):
            return self.executor.losses(weights, clients)
        models = [start_model(weights, client_round.part, client_round.memory.state) for client_round in rounds]
        return [self.executor.losses(model, [client])[0] for model, client in zip(models, clients, strict=True)]

    def _start_fold(
        self, fold: Callable[[], UpdateFold | None] | None, weights: Weights, works: list[ClientWork]
    ) -> Folding | None:
        """Start to fold the updates of a round if they are too large to keep, and of the whole model."""
        large = len(works) * weights.nbytes > self.keep_bytes
        if fold is None or not large or self.attackers is not None or any(work.part is not None for work in works):
            return None
        return Folding(made, weights) if (made := fold()) is not None else None

    def _report_again(
        self, weights: Weights, make: Callable[[int, TrainResult], tuple[ClientReport, ClientMemory]],
        works: Mapping[int, ClientWork], clients: Collection[str],
    ) -> Iterator[ClientReport]:  # fmt: skip
        """Train some of a round's clients again, which gives the same updates."""
        chosen = {place: work for place, work in works.items() if work.client in clients}
        for place, each in zip(chosen, self._train(weights, list(chosen.values()), True), strict=True):
            assert isinstance(each, TrainResult), f"client {each.client!r} diverged only the second time"
            yield make(place, each)[0]

    def _train_places(
        self, rounds: list[ClientRound], places: list[int], works: Mapping[int, ClientWork], weights: Weights,
        one_by_one: bool,
    ) -> Iterator[tuple[int, TrainResult | DivergedTraining]]:  # fmt: skip
        """Yield the result of every place, in their order; a client whose forward pass diverged trains nothing."""
        results = iter(self._train(weights, list(works.values()), one_by_one))
        for place in places:
            each = rounds[place]
            yield place, DivergedTraining(each.client, each.problem) if each.problem else next(results)

    def _train(
        self, weights: Weights, works: list[ClientWork], one_by_one: bool
    ) -> Iterable[TrainResult | DivergedTraining]:
        train: Any = self.executor.train_each if one_by_one else self.executor.train
        own = any(MODEL in work.state for work in works)
        return train_from_own_models(train, weights, works) if own else train(weights, works)

    def _interrupt(
        self, rounds: list[ClientRound], attempts: Attempts, accepted: NDArray[np.bool_], seconds: float,
        weights: Weights, start_s: float,
    ) -> None:  # fmt: skip
        """Train what the clients without a report had time for, and let them remember it if they do."""
        if not self._keeps_interrupted:
            return
        done = interrupted_batches(rounds, attempts, accepted, seconds, RoundClock(self.availability, start_s))
        works = [rounds[place].work(batches) for place, batches in done.items()]
        for (place, batches), trained in zip(done.items(), self._train(weights, works, False), strict=True):
            client_round = interrupt(rounds[place], batches, trained, weights)
            self.memory.put(self.ledger.position[client_round.client], client_round.memory)

    def _diverged(self, client_round: ClientRound, each: DivergedTraining, timings: Timings, row: int) -> ClientReport:
        """Return the report of a client whose training diverged. The client remembers no training."""
        client_round.forget_training()
        self.memory.put(row, client_round.memory)
        return diverged_report(each, timings, _mask_of(client_round))

    def _falsified(self, reports: dict[int, ClientReport], order: Order, weights: Weights) -> dict[int, ClientReport]:
        """Return the reports as the attackers change them."""
        if self.attackers is None:
            return reports
        return dict(zip(reports, self.attackers.falsify(list(reports.values()), order, weights), strict=True))

    def _split_unreadable(self, reports: list[ClientReport]) -> tuple[list[ClientReport], list[FailedClient]]:
        """Separate reports whose release an attacker made unreadable; one would spoil the whole cohort's decoding."""
        check = self.policies.summary.fault
        if self.attackers is None:
            return reports, []
        problems = {report.client: check(report.summary.released, self._size_of(report.client)) for report in reports}
        unreadable = [
            FailedClient(report.client, INVALID, report.timings, problem=problem)
            for report in reports
            if (problem := problems[report.client])
        ]
        return [report for report in reports if not problems[report.client]], unreadable

    def _report(
        self, rounds: list[ClientRound], attempts: Attempts, timings: list[Timings], place: int, trained: TrainResult
    ) -> tuple[ClientReport, ClientMemory]:
        """Return a client's honest report, encoded and decoded, and what the client remembers."""
        client_round = rounds[place]
        order, layout = client_round.order, self.executor.layout
        noise = self._noise(order, client_round.client)
        released = client_round.prepare_report(trained, float(attempts.draws.batch_s[place]), layout, noise)
        if isinstance(released.sent, bytes) and len(released.sent) != self._encoded_bytes:
            policy = type(self.policies.compress).__name__
            raise ValueError(f"{policy} sent {len(released.sent)} bytes but promised {self._encoded_bytes}")
        update = decode_update(released.sent, self.policies.compress, layout, order, client_round.client)
        epochs = client_round.reported_epochs(int(attempts.batches[place]))
        seen = len(trained.seen) if client_round.continued is None else len(client_round.indices)
        weight = 1.0 if released.summary.withholds_counts else float(seen)
        part, batch_share = _mask_of(client_round), 1.0
        if client_round.part is not None and self.policies.part.follows_shares:
            batch_share = client_round.part.batch_share
        report = ClientReport(
            client_round.client, update, weight, epochs, released.summary, timings[place], arrays=released.arrays,
            part=part, batch_share=batch_share,
        )  # fmt: skip
        return report, released.memory


class StartedClients(NamedTuple):
    """Clients that start at the same time: their rounds, and when they finish."""

    rounds: list[ClientRound]
    attempts: Attempts


def _mask_of(client_round: ClientRound) -> NDArray[np.bool_] | None:
    return None if client_round.part is None else client_round.part.mask
