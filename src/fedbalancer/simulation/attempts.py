"""Who will finish a round, when, and after how many batches: worked out for a whole cohort before anything is trained.

Everything here is a column with a value per client, in the order of the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.round import ClientRound
from fedbalancer.core.interfaces import Availability
from fedbalancer.core.types import FloatArray, IndexArray, Order, RoundPlan, Timings
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws


@dataclass(frozen=True)
class RoundClock:
    """A round that starts at `start_s`, as the clients' availability lets it pass."""

    availability: Availability
    start_s: float

    def elapsed_s(self, clients: Sequence[str], busy_s: FloatArray) -> FloatArray:
        """When each client has done its seconds of work; inf if never."""
        if isinstance(self.availability, AlwaysOn):
            return busy_s
        pairs = zip(clients, busy_s.tolist(), strict=True)
        return np.array([self.availability.elapsed_s(client, self.start_s, seconds) for client, seconds in pairs])

    def after_batches(self, client: str, before_s: float, batch_s: float, upload_s: float) -> Callable[[int], float]:
        """When a client that trains so many batches has finished its upload."""
        if isinstance(self.availability, AlwaysOn):
            return lambda batches: before_s + batches * batch_s + upload_s
        elapsed_s = self.availability.elapsed_s
        return lambda batches: elapsed_s(client, self.start_s, before_s + batches * batch_s + upload_s)


@dataclass(frozen=True, eq=False)
class Attempts:
    """A cohort's round as it will go. `batches` is what each client trains, or would for one that is too late;
    `started` says who trains any before the deadline (or ever, where late reports count), `makes_it` who is in time,
    and `why` in which phase the others fail ("" for those in time)."""

    clients: tuple[str, ...]
    draws: DeviceDraws
    forward_s: FloatArray
    batches: IndexArray
    per_epoch: IndexArray
    started: NDArray[np.bool_]
    elapsed_s: FloatArray
    makes_it: NDArray[np.bool_]
    why: NDArray[np.str_]

    @property
    def comes(self) -> NDArray[np.bool_]:
        """Who will have a report, in time or not."""
        return (self.batches > 0) & np.isfinite(self.elapsed_s)

    def timings(self) -> list[Timings]:
        """Where every client's seconds went."""
        train_s = self.batches * self.draws.batch_s
        busy_s = self.draws.download_s + self.forward_s + train_s + self.draws.upload_s
        paused_s = np.maximum(self.elapsed_s - busy_s, 0.0)
        columns = (self.draws.download_s, self.forward_s, train_s, self.draws.upload_s, paused_s)
        return [Timings(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def simulate_attempts(
    rounds: Sequence[ClientRound], draws: DeviceDraws, order: Order, clock: RoundClock, late_counts: bool = False
) -> Attempts:
    """How the round goes for clients that have selected their samples, or have none to select from. Where a late report
    counts, a client that cannot make the deadline trains what it will report all the same."""
    clients = tuple(round.client for round in rounds)
    samples = np.array([len(round.indices) for round in rounds], dtype=np.int64)
    all_batches = np.array([round.all_batches for round in rounds], dtype=np.int64)
    forward_s = np.array([round.look_batches for round in rounds]) * draws.batch_s
    before_s = draws.download_s + forward_s
    columns = (before_s, draws.batch_s, draws.upload_s)
    done, started = np.zeros(len(rounds), dtype=np.int64), np.zeros(len(rounds), dtype=bool)
    otherwise = all_batches.copy()
    start_by_s = math.inf if late_counts else order.deadline_s
    for place, (round, *seconds) in enumerate(zip(rounds, *(column.tolist() for column in columns), strict=True)):
        after_s = clock.after_batches(round.client, *seconds)
        started[place] = not round.needs_forward_pass and round.can_finish(after_s(0), start_by_s)
        if not round.needs_forward_pass:
            done[place] = _batches(round, after_s, clock, seconds, float(draws.download_s[place]))
            if late_counts and not done[place]:
                otherwise[place] = round.batches_late(after_s, order.deadline_s)
    batches = np.where((done == 0) & (samples > 0), otherwise, done)
    trained_s = before_s + batches * draws.batch_s
    elapsed_s = clock.elapsed_s(clients, trained_s + draws.upload_s)
    forecast = np.array([round.forecasts for round in rounds], dtype=bool)
    makes_it = (done > 0) & np.isfinite(elapsed_s) & (~forecast | (elapsed_s <= order.deadline_s))
    ends_s = (draws.download_s, before_s, trained_s)
    why = _why(clients, makes_it, elapsed_s, ends_s, order.deadline_s, clock)
    return Attempts(clients, draws, forward_s, batches, all_batches // order.epochs, started, elapsed_s, makes_it, why)


def _batches(
    round: ClientRound, after_s: Callable[[int], float], clock: RoundClock, seconds: list[float], download_s: float
) -> int:
    """What a client decides to train: knowing how long its upload will take, or by a forecast of that."""
    if not round.forecasts:
        return round.batches_in_time(after_s, round.order.deadline_s)
    before_s, batch_s, _ = seconds
    return round.batches_by_forecast(partial(clock.after_batches, round.client, before_s, batch_s), download_s)


def _why(
    clients: tuple[str, ...],
    makes_it: NDArray[np.bool_],
    elapsed_s: FloatArray,
    ends_s: tuple[FloatArray, FloatArray, FloatArray],
    deadline_s: float,
    clock: RoundClock,
) -> NDArray[np.str_]:
    """The phase in which the deadline passes; `ends_s` has the busy seconds at which download, forward pass and
    training end."""
    why = np.full(len(clients), "", dtype="<U11")
    late = np.flatnonzero(~makes_it)
    if not len(late):
        return why
    names = [clients[place] for place in late]
    passed = [clock.elapsed_s(names, end_s[late]) > deadline_s for end_s in ends_s]
    phases = ["unavailable", "download", "forward", "train"]
    why[late] = np.select([~np.isfinite(elapsed_s[late]), *passed], phases, "upload")
    return why


def close_round(plan: RoundPlan, attempts: Attempts) -> tuple[NDArray[np.bool_], float]:
    """Who is accepted, and when the round closes: at the quorum-th report or at the deadline. Of equal times the first
    in the cohort, which is in order of client id, is taken.

    Without a deadline, a quorum that can never be reached closes with the last report that comes.
    """
    finished = np.flatnonzero(attempts.makes_it)
    first = finished[np.argsort(attempts.elapsed_s[finished], kind="stable")][: plan.quorum]
    accepted = np.zeros(len(attempts.clients), dtype=bool)
    accepted[first] = True
    if len(first) < plan.quorum and math.isfinite(plan.order.deadline_s):
        return accepted, plan.order.deadline_s
    return accepted, float(attempts.elapsed_s[first[-1]]) if len(first) else 0.0
