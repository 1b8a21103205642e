"""Predicts, for a whole cohort and before any training, who finishes a round, when, and after how many batches.

All arrays have one value per client, in the order of the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.round import ClientRound
from fedbalancer.core.cost import LatencyScale
from fedbalancer.core.interfaces import Availability
from fedbalancer.core.types import FloatArray, IndexArray, Order, RoundPlan, Timings
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws
from fedbalancer.simulation.state import PendingReport, PendingReports


@dataclass(frozen=True)
class RoundClock:
    """Converts seconds of work into seconds on the clock of one round.

    Args:
        availability: When each client may work; outside these times its work pauses.
        start_s: Second on the run's clock at which the round starts.
    """

    availability: Availability
    start_s: float

    def elapsed_s(self, clients: Sequence[str], busy_s: FloatArray) -> FloatArray:
        """Return the seconds from the start until each client has worked for `busy_s` seconds; inf if never."""
        if isinstance(self.availability, AlwaysOn):
            return busy_s
        pairs = zip(clients, busy_s.tolist(), strict=True)
        return np.array([self.availability.elapsed_s(client, self.start_s, seconds) for client, seconds in pairs])

    def predict_finish(self, client: str, before_s: float, batch_s: float, upload_s: float) -> Callable[[int], float]:
        """Return a function that predicts when the client finishes its upload if it trains `n` batches.

        Args:
            client: The client's id.
            before_s: Seconds of work before the first batch: download and forward pass.
            batch_s: Seconds per batch.
            upload_s: Seconds of the upload.
        """
        if isinstance(self.availability, AlwaysOn):
            return lambda batches: before_s + batches * batch_s + upload_s
        elapsed_s = self.availability.elapsed_s
        return lambda batches: elapsed_s(client, self.start_s, before_s + batches * batch_s + upload_s)


@dataclass(frozen=True, eq=False)
class Attempts:
    """The predicted round of every client in a cohort.

    Args:
        clients: Ids of the clients.
        draws: Batch latency and transfer times of each client.
        forward_s: Seconds of each client's forward pass.
        batches: Batches that each client trains, or would train if it is too late.
        per_epoch: Batches per epoch.
        started: Whether the client trains at least one batch before the deadline (or ever, if late reports count).
        elapsed_s: Seconds from the client's start to the end of its upload; inf if it never ends.
        is_in_time: Whether the report arrives in time.
        failed_phase: Phase in which the deadline passes; "" for clients that are in time.
        start_s: Seconds from the start of the round until each client starts.
        only_problem: Whether each client trains nothing, because its forward pass diverged, and reports only that.
    """

    clients: tuple[str, ...]
    draws: DeviceDraws
    forward_s: FloatArray
    batches: IndexArray
    per_epoch: IndexArray
    started: NDArray[np.bool_]
    elapsed_s: FloatArray
    is_in_time: NDArray[np.bool_]
    failed_phase: NDArray[np.str_]
    start_s: FloatArray
    only_problem: NDArray[np.bool_]

    @property
    def arrives_s(self) -> FloatArray:
        """Seconds from the start of the round until each report arrives."""
        return self.start_s + self.elapsed_s

    @property
    def will_report(self) -> NDArray[np.bool_]:
        """Whether each client finishes its report at all, in time or late."""
        return ((self.batches > 0) | self.only_problem) & np.isfinite(self.elapsed_s)

    def timings(self) -> list[Timings]:
        """Return the seconds that each client spends in each phase."""
        train_s = self.batches * self.draws.batch_s
        busy_s = self.draws.download_s + self.forward_s + train_s + self.draws.upload_s
        paused_s = np.maximum(self.elapsed_s - busy_s, 0.0)
        columns = (self.draws.download_s, self.forward_s, train_s, self.draws.upload_s, paused_s)
        return [Timings(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def join_attempts(groups: Sequence[Attempts]) -> Attempts:
    """Return the attempts of groups of clients that start at different times, in the order of client ids.

    Args:
        groups: At least one group.
    """
    clients = [client for group in groups for client in group.clients]
    order = np.argsort(clients, kind="stable")

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([attrgetter(name)(group) for group in groups])[order]

    draws = DeviceDraws(*(column(f"draws.{each.name}") for each in fields(DeviceDraws)))
    others = {each.name: column(each.name) for each in fields(Attempts) if each.name not in ("clients", "draws")}
    return Attempts(clients=tuple(clients[place] for place in order), draws=draws, **others)


def simulate_attempts(
    rounds: Sequence[ClientRound],
    draws: DeviceDraws,
    order: Order,
    clock: RoundClock,
    late_counts: bool = False,
    scale: LatencyScale | None = None,
    start_s: float = 0.0,
) -> Attempts:
    """Predict the round of every client, after its sample selection.

    Args:
        rounds: The clients' rounds.
        draws: Batch latency and transfer times of each client.
        order: The server's order, with the deadline.
        clock: The clock of these clients' work.
        late_counts: Whether late reports count. If so, a client that cannot meet the deadline trains nevertheless.
        scale: Seconds of short batches. Default: they take as long as whole ones.
        start_s: Seconds from the start of the round until these clients start.

    Returns:
        The predicted round of every client.
    """
    clients = tuple(client_round.client for client_round in rounds)
    samples = np.array([len(client_round.indices) for client_round in rounds], dtype=np.int64)
    all_batches = np.array([client_round.all_batches for client_round in rounds], dtype=np.int64)
    per_epoch = np.array([client_round.per_epoch for client_round in rounds], dtype=np.int64)
    forward_s = np.array([client_round.forward_batches for client_round in rounds]) * draws.batch_s
    if scale is not None:
        forward_s = forward_s * scale.batch_factors(np.array([client_round.size for client_round in rounds]))
        draws = replace(draws, batch_s=draws.batch_s * scale.batch_factors(samples, per_epoch))
    before_s = draws.download_s + forward_s
    columns = (before_s, draws.batch_s, draws.upload_s)
    in_time, started = np.zeros(len(rounds), dtype=np.int64), np.zeros(len(rounds), dtype=bool)
    if_late = all_batches.copy()
    start_by_s = math.inf if late_counts else order.deadline_s
    for place, (client_round, *seconds) in enumerate(
        zip(rounds, *(column.tolist() for column in columns), strict=True)
    ):
        finish_s = clock.predict_finish(client_round.client, *seconds)
        started[place] = not client_round.needs_forward_pass and client_round.can_finish(finish_s(0), start_by_s)
        if not client_round.needs_forward_pass:
            in_time[place] = _choose_batches(client_round, finish_s, clock, seconds, float(draws.download_s[place]))
            if late_counts and not in_time[place]:
                if_late[place] = client_round.batches_if_late(finish_s, order.deadline_s)
    batches = np.where((in_time == 0) & (samples > 0), if_late, in_time)
    trained_s = before_s + batches * draws.batch_s
    elapsed_s = clock.elapsed_s(clients, trained_s + draws.upload_s)
    forecasts = np.array([client_round.forecasts for client_round in rounds], dtype=bool)
    only_problem = np.array([client_round.problem != "" for client_round in rounds], dtype=bool)
    finishes = ((in_time > 0) | only_problem) & np.isfinite(elapsed_s)
    is_in_time = finishes & (~(forecasts | only_problem) | (elapsed_s <= order.deadline_s))
    ends_s = (draws.download_s, before_s, trained_s)
    phase = _failed_phases(clients, is_in_time, elapsed_s, ends_s, order.deadline_s, clock)
    starts_s = np.full(len(rounds), start_s)
    return Attempts(
        clients, draws, forward_s, batches, per_epoch, started, elapsed_s, is_in_time, phase, starts_s, only_problem
    )


def _choose_batches(
    client_round: ClientRound,
    finish_s: Callable[[int], float],
    clock: RoundClock,
    seconds: list[float],
    download_s: float,
) -> int:
    """Return the batches that a client decides to train, from the true duration of its upload or from a forecast."""
    if not client_round.forecasts:
        return client_round.batches_in_time(finish_s, client_round.order.deadline_s)
    before_s, batch_s, _ = seconds
    predict = partial(clock.predict_finish, client_round.client, before_s, batch_s)
    return client_round.batches_by_forecast(predict, download_s)


def _failed_phases(
    clients: tuple[str, ...],
    is_in_time: NDArray[np.bool_],
    elapsed_s: FloatArray,
    ends_s: tuple[FloatArray, FloatArray, FloatArray],
    deadline_s: float,
    clock: RoundClock,
) -> NDArray[np.str_]:
    """Return the phase in which the deadline passes.

    `ends_s` holds the seconds of work after which download, forward pass and training end.
    """
    phase = np.full(len(clients), "", dtype="<U11")
    late = np.flatnonzero(~is_in_time)
    if not len(late):
        return phase
    names = [clients[place] for place in late]
    passed = [clock.elapsed_s(names, end_s[late]) > deadline_s for end_s in ends_s]
    phases = ["unavailable", "download", "forward", "train"]
    phase[late] = np.select([~np.isfinite(elapsed_s[late]), *passed], phases, "upload")
    return phase


def close_round(plan: RoundPlan, attempts: Attempts) -> tuple[NDArray[np.bool_], float]:
    """Decide which reports are accepted and when the round closes: at the quorum-th report or at the deadline.

    Ties are broken by the order of the cohort, which is sorted by client id. Without a deadline, a quorum that is never
    reached closes the round with its last report.

    Args:
        plan: The round's plan, with cohort, quorum and deadline.
        attempts: The predicted round of every client.

    Returns:
        Whether each client's report is accepted, and the seconds from the start to the close of the round.
    """
    finished = np.flatnonzero(attempts.is_in_time)
    first = finished[np.argsort(attempts.elapsed_s[finished], kind="stable")][: plan.quorum]
    accepted = np.zeros(len(attempts.clients), dtype=bool)
    accepted[first] = True
    if len(first) < plan.quorum and math.isfinite(plan.order.deadline_s):
        return accepted, plan.order.deadline_s
    return accepted, float(attempts.elapsed_s[first[-1]]) if len(first) else 0.0


def arrivals_of(attempts: Attempts) -> list[tuple[float, str]]:
    """Return when each report arrives, in seconds from the start of the round, and its client.

    Args:
        attempts: The predicted round of every client.
    """
    places = np.flatnonzero(attempts.will_report).tolist()
    return [(float(attempts.arrives_s[place]), attempts.clients[place]) for place in places]


def close_with_pending(
    plan: RoundPlan, attempts: Attempts, pending: PendingReports, start_s: float
) -> tuple[NDArray[np.bool_], list[PendingReport], float]:
    """Decide which reports of the cohort and which pending reports are accepted, and when the round closes.

    Args:
        plan: The round's plan; `plan.late` says how late reports count.
        attempts: The predicted round of every client in the cohort.
        pending: Reports of clients selected in earlier rounds.
        start_s: Second on the run's clock at which the round starts.

    Returns:
        Whether each client of the cohort is accepted, the accepted pending reports, and the seconds until the close.
    """
    if plan.late == "counts":
        return _close_buffered(plan, attempts, pending, start_s)
    accepted, seconds = close_round(plan, attempts)
    if plan.late == "lost":
        return accepted, [], seconds
    if not accepted.any() and not (plan.cohort and math.isfinite(plan.order.deadline_s)):  # nobody else to wait for
        seconds = max(min((each.arrives_s for each in pending), default=start_s) - start_s, 0.0)
    return accepted, [each for each in pending if each.arrives_s - start_s <= seconds], seconds


def _close_buffered(
    plan: RoundPlan, attempts: Attempts, pending: PendingReports, start_s: float
) -> tuple[NDArray[np.bool_], list[PendingReport], float]:
    """Accept the first `quorum` reports before the deadline, whenever their clients started, and at least one.

    Ties are broken by client id. A round with a timer also closes without a report.
    """
    earlier = [(each.arrives_s - start_s, each.report.client) for each in pending]
    arrivals, deadline_s = sorted([*earlier, *arrivals_of(attempts)]), min(plan.order.deadline_s, plan.timer_s)
    count = max(sum(seconds <= deadline_s for seconds, _ in arrivals), 0 if math.isfinite(plan.timer_s) else 1)
    first = arrivals[: min(count, plan.quorum)]
    clients = {client for _, client in first}
    accepted = np.array([client in clients for client in attempts.clients], dtype=bool)
    stale = [each for each in pending if each.report.client in clients]
    last_s = max(first[-1][0], 0.0) if first else 0.0
    if (first or math.isfinite(plan.timer_s)) and len(first) < plan.quorum and math.isfinite(deadline_s):
        return accepted, stale, max(deadline_s, last_s)
    return accepted, stale, last_s
