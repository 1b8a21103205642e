"""A cohort's round, against an oracle that follows one client at a time through its phases."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from builders import make_order, names
from hypothesis import given
from hypothesis import strategies as st

from fedbalancer.client.policies import ClientPolicies
from fedbalancer.client.round import ClientMemory, ClientRound
from fedbalancer.client.work import AllOrNothing, WholeBatches, WholeEpochs
from fedbalancer.core.contracts import WorkPolicy
from fedbalancer.core.interfaces import Availability
from fedbalancer.core.types import FloatArray, IndexArray, Order, RoundPlan
from fedbalancer.simulation.attempts import RoundClock, close_round, simulate_attempts
from fedbalancer.simulation.devices import AlwaysOn, DeviceDraws, Traces

PERIOD = 64.0
some_seconds = st.integers(0, 40).map(float)
chosen = st.tuples(st.integers(1, 60), st.integers(0, 60), st.booleans(), some_seconds, some_seconds, some_seconds)
# Some of these samples are selected after a forward pass over all; None: without a forward pass.
cohorts = st.lists(
    chosen.map(lambda client: (client[0], min(client[:2]), client[2] and client[1] > 0, *client[3:])), max_size=6
)
orders = st.builds(
    make_order,
    deadline_s=st.floats(0, 300) | st.just(math.inf),
    epochs=st.integers(1, 4),
    epoch_batches=st.none() | st.integers(1, 3),
)
works = st.sampled_from([AllOrNothing(), WholeEpochs(), WholeBatches()])
intervals = st.sampled_from([[[0, 64]], [[0, 20], [40, 41]], [[63, 64]], []])


@dataclass(frozen=True)
class First:
    """Selects the first samples, at once or after a forward pass."""

    count: int
    looks: bool

    def cap(self, sizes: IndexArray) -> int | None:
        return None

    def select(self, size: int, losses: FloatArray | None, *_: Any) -> IndexArray | None:
        return None if self.count == 0 or (self.looks and losses is None) else np.arange(self.count)


def selected(size: int, samples: int, looks: bool, name: str, order: Order, work: WorkPolicy) -> ClientRound:
    """A client that has selected its samples, and pays for its look if it looked."""
    policies = ClientPolicies(samples=First(samples, looks), work=work, forward_pass="every")
    made = ClientRound(policies, order, name, size, ClientMemory())
    if looks:
        made.add_forward_pass(np.zeros(size))
    return made


def one_by_one(
    client: tuple[int, int, bool, float, float, float], name: str, order: Order, work: WorkPolicy, there: Availability
) -> tuple[Any, ...]:
    """Phase by phase, in plain Python."""
    size, samples, looked, batch_s, download_s, upload_s = client
    forward_s = 0.5 * math.ceil(size / order.batch_size) * batch_s if looked else 0.0
    per_epoch = max(math.ceil(samples / order.batch_size), 1)
    per_epoch = min(per_epoch, order.epoch_batches or per_epoch)

    def at(phases_s: float) -> float:
        return there.elapsed_s(name, 20.0, phases_s)

    def finished(batches: int) -> float:
        return at(download_s + forward_s + batches * batch_s + upload_s)

    done = work.batches(finished, order.deadline_s, per_epoch, order.epochs) if samples else 0
    batches = done or (per_epoch * order.epochs if samples else 0)
    end_s = finished(batches)
    is_in_time = done > 0 and math.isfinite(end_s)
    why = ""
    if not is_in_time:
        why = "upload"
        for phase, phase_s in (
            ("train", download_s + forward_s + batches * batch_s),
            ("forward", download_s + forward_s),
            ("download", download_s),
        ):
            why = phase if at(phase_s) > order.deadline_s else why
        why = why if math.isfinite(end_s) else "unavailable"
    busy_s = download_s + forward_s + batches * batch_s + upload_s
    return (
        is_in_time,
        why,
        batches,
        end_s,
        (download_s, forward_s, batches * batch_s, upload_s, max(end_s - busy_s, 0.0)),
    )


@given(cohorts, orders, works, st.none() | st.lists(intervals, min_size=6, max_size=6))
def test_a_cohort_goes_as_its_clients_would_go_one_by_one(
    cohort: list[Any], order: Order, work: WorkPolicy, traces: list[Any] | None
) -> None:
    clients = names(len(cohort))
    there: Availability = AlwaysOn()
    if traces is not None:
        rows = {name: np.array(pairs, dtype=float).reshape(-1, 2) for name, pairs in zip(names(6), traces, strict=True)}
        there = Traces(rows, PERIOD)
    batch_s, download_s, upload_s = np.array([client[3:] for client in cohort], dtype=float).reshape(-1, 3).T
    rounds = [selected(*client[:3], name, order, work) for client, name in zip(cohort, clients, strict=True)]
    found = simulate_attempts(rounds, DeviceDraws(batch_s, download_s, upload_s), order, RoundClock(there, 20.0))
    expected = [one_by_one(client, name, order, work, there) for client, name in zip(cohort, clients, strict=True)]
    columns = (found.is_in_time, found.failed_phase, found.batches, found.elapsed_s)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [row[:4] for row in expected]
    parts = [(t.download_s, t.forward_s, t.train_s, t.upload_s, t.paused_s) for t in found.timings()]
    assert parts == [row[4] for row in expected]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8), st.integers(0, 9), st.sampled_from([9, math.inf])
)
def test_closes_with_the_quorum_or_at_the_deadline(
    arrivals: list[tuple[int, bool]], quorum: int, deadline_s: float
) -> None:
    clients = names(len(arrivals))
    times = np.array([time for time, _ in arrivals], dtype=float)
    rounds = [selected(1, 1, False, name, make_order(), AllOrNothing()) for name in clients]
    empty = simulate_attempts(rounds, DeviceDraws(times, times, times), make_order(), RoundClock(AlwaysOn(), 0.0))
    attempts = replace(empty, elapsed_s=times, is_in_time=np.array([comes for _, comes in arrivals], dtype=bool))
    accepted, seconds = close_round(RoundPlan(make_order(deadline_s=deadline_s), clients, quorum), attempts)
    coming = sorted((time, name) for (time, comes), name in zip(arrivals, clients, strict=True) if comes)[:quorum]
    assert {name for name, taken in zip(clients, accepted, strict=True) if taken} == {name for _, name in coming}
    full = len(coming) == quorum or math.isinf(deadline_s)
    assert seconds == ((coming[-1][0] if coming else 0.0) if full else deadline_s)
