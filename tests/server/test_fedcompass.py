"""FedCompass against a literal transcription of its authors' scheduler, on random clients and delays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from builders import make_ledger, make_report, make_setup
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.types import RoundResult
from fedbalancer.methods.table import method
from fedbalancer.server.late import ArrivalGroups
from fedbalancer.server.server import Server
from fedbalancer.testing import check_policy

CLIENTS, LEAST, MOST, FACTOR, ALPHA, MOMENTUM = 5, 20, 100, 1.5, 0.9, 0.9
TARGETS = np.array([[3.0, -1.0], [0.0, 2.0], [-4.0, 0.5], [1.0, 1.0], [8.0, -8.0]])
X0 = np.array([5.0, -5.0])
Event = tuple[float, str, Any]


@dataclass
class Delays:
    """Seconds per step of every start of every client: an expected value times a random factor."""

    expected_s: list[float]
    seed: int
    starts: dict[int, int] = field(default_factory=dict)

    def draw(self, client: int, steps: int) -> float:
        self.starts[client] = self.starts.get(client, 0) + 1
        rng = np.random.default_rng([self.seed, client, self.starts[client]])
        return float(steps * self.expected_s[client] * rng.choice([0.31, 0.97, 1.02, 1.9]) * rng.uniform(0.99, 1.01))


class Paper:
    """Transcription of `CompassScheduler` and `FedCompassAggregator` of APPFL, with events instead of timers.

    The names are theirs. All speeds are known at the start, so that all clients have a group at second 0. The general
    buffer keeps all reports; theirs keeps only the last one of a client.
    """

    def __init__(self, delays: Delays) -> None:
        self.delays, self.w, self.events = delays, X0.copy(), list[Event]()
        self.client_info: dict[int, dict[str, Any]] = {
            c: {"speed": s, "timestamp": 0} for c, s in enumerate(delays.expected_s)
        }
        self.arrival_group: dict[int, dict[str, Any]] = {}
        self.group_buffer: dict[int, dict[int, Any]] = {}
        self.general_buffer: list[Any] = []
        self.global_timestamp = self.group_counter = 0
        self.arrives: dict[int, float] = {}
        self.models: dict[int, NDArray[np.float64]] = {}
        for c in sorted(self.client_info, key=lambda c: self.client_info[c]["speed"]):
            self.assign_group(c, 0.0)

    def play(self, until: int) -> list[Event]:
        while len(self.events) < until:
            client = min(self.arrives, key=lambda c: self.arrives[c])
            timers = [(g["latest_arrival_time"], k) for k, g in self.arrival_group.items() if self.group_buffer.get(k)]
            if timers and min(timers)[0] < self.arrives[client]:
                at, group = min(timers)
                self.group_aggregation(group, at)
            else:
                self.schedule(client, self.arrives.pop(client))
        return self.events

    def schedule(self, c: int, now: float) -> None:
        info = self.client_info[c]
        speed = (now - info["start_time"]) / info["local_steps"]
        info["speed"] = (1 - MOMENTUM) * info["speed"] + MOMENTUM * speed
        delta = 0.5 * (TARGETS[c] - self.models[c])
        group = self.arrival_group[info["goa"]]
        group["clients"].remove(c)
        if now > group["latest_arrival_time"]:
            if not group["clients"]:
                del self.arrival_group[info["goa"]]
            self.general_buffer.append((delta, info["timestamp"]))
            info["timestamp"] = self.global_timestamp
            self.assign_group(c, now)
        else:
            group["arrived_clients"].append(c)
            self.group_buffer.setdefault(info["goa"], {})[c] = (delta, info["timestamp"])
            if not group["clients"]:
                self.group_aggregation(info["goa"], now)

    def group_aggregation(self, idx: int, now: float) -> None:
        group = self.arrival_group[idx]
        for delta, timestamp in [*self.general_buffer, *self.group_buffer.pop(idx).values()]:
            staleness = self.global_timestamp - timestamp
            self.w = self.w + ALPHA * (staleness + 1) ** -0.5 / CLIENTS * delta
        self.general_buffer = []
        self.global_timestamp += 1
        self.events.append((now, "model", self.w.copy()))
        arrived = sorted(group["arrived_clients"], key=lambda c: self.client_info[c]["speed"])
        for c in arrived:
            self.client_info[c]["timestamp"] = self.global_timestamp
        group["expected_arrival_time"] = group["latest_arrival_time"] = 0
        group["arrived_clients"] = []
        if not group["clients"]:
            del self.arrival_group[idx]
        for c in arrived:
            self.assign_group(c, now)

    def assign_group(self, c: int, now: float) -> None:
        if not self.arrival_group:
            self.open_group(c, now, MOST)
        elif not self.join_group(c, now):
            self.create_group(c, now)
        info = self.client_info[c]
        info["start_time"], self.models[c] = now, self.w.copy()
        self.events.append((now, f"start {c}", info["local_steps"]))
        self.arrives[c] = now + self.delays.draw(c, info["local_steps"])

    def join_group(self, c: int, now: float) -> bool:
        assigned_group = assigned_steps = -1
        for group, each in self.arrival_group.items():
            local_steps = math.floor((each["expected_arrival_time"] - now) / self.client_info[c]["speed"])
            if local_steps < LEAST or local_steps < assigned_steps or local_steps > MOST:
                continue
            assigned_group, assigned_steps = group, local_steps
        if assigned_group == -1:
            return False
        self.arrival_group[assigned_group]["clients"].append(c)
        self.client_info[c] |= {"goa": assigned_group, "local_steps": assigned_steps}
        return True

    def create_group(self, c: int, now: float) -> None:
        assigned_steps = -1
        for group in self.arrival_group.values():
            if now < group["latest_arrival_time"]:
                group_clients = group["clients"] + group["arrived_clients"]
                fastest_speed = min(self.client_info[each]["speed"] for each in group_clients)
                est_arrival_time = group["latest_arrival_time"] + fastest_speed * MOST
                local_steps = math.floor((est_arrival_time - now) / self.client_info[c]["speed"])
                if local_steps <= MOST:
                    assigned_steps = max(assigned_steps, local_steps)
        assigned_steps = LEAST if 0 <= assigned_steps < LEAST else assigned_steps
        self.open_group(c, now, MOST if assigned_steps < 0 else assigned_steps)

    def open_group(self, c: int, now: float, steps: int) -> None:
        seconds = steps * self.client_info[c]["speed"]
        self.arrival_group[self.group_counter] = {
            "clients": [c], "arrived_clients": [], "expected_arrival_time": now + seconds,
            "latest_arrival_time": now + seconds * FACTOR,
        }  # fmt: skip
        self.client_info[c] |= {"goa": self.group_counter, "local_steps": steps}
        self.group_counter += 1


def ours(delays: Delays, until: int) -> list[Event]:
    """Our server on the same delays: every start with its steps, and every new model."""
    ledger = replace(make_ledger([10] * CLIENTS, batch_s=delays.expected_s), network_s=np.zeros(CLIENTS))
    server = Server(method("fedcompass").server, make_setup(ledger, clients_per_round=CLIENTS))
    state, events = server.init(X0.astype(np.float32)), list[Event]()
    arrives: dict[str, float] = {}
    started: dict[str, NDArray[np.float64]] = {}
    while len(events) < until:
        plan = server.plan(state, np.array([row for row in range(CLIENTS) if f"c{row}" not in arrives], dtype=np.int64))
        now = state.clock_s
        for client in sorted(plan.cohort, key=lambda c: state.late.seconds[int(c[1:])]):
            steps = plan.order.steps[client]
            events.append((now, f"start {client[1:]}", steps))
            arrives[client] = now + delays.draw(int(client[1:]), steps)
            started[client] = state.weights.astype(np.float64)
        first = min(arrives, key=lambda c: arrives[c])
        at, reports = min(arrives[first], now + plan.timer_s), []
        if arrives[first] <= now + plan.timer_s:
            del arrives[first]
            reports = [make_report(first, 0.5 * (TARGETS[int(first[1:])] - started[first]), 10.0)]
        before = state.weights
        state = server.observe(
            state, RoundResult(plan, tuple(reports), (), at - now, under_way=tuple(sorted(arrives)), validated=True)
        )
        if state.weights is not before:
            events.append((state.clock_s, "model", state.weights.astype(np.float64)))
    return events


@given(st.lists(st.floats(0.05, 3.0), min_size=CLIENTS, max_size=CLIENTS, unique=True), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_it_is_the_authors_scheduler(speeds: list[float], seed: int) -> None:
    paper, own = Paper(Delays(speeds, seed)).play(80)[:80], ours(Delays(speeds, seed), 80)[:80]
    assert [what for _, what, _ in own] == [what for _, what, _ in paper]
    assert [at for at, _, _ in own] == pytest.approx([at for at, _, _ in paper])
    for (_, what, mine), (_, _, theirs) in zip(own, paper, strict=True):
        assert mine == (pytest.approx(theirs, rel=1e-4, abs=1e-4) if what == "model" else theirs)


def test_all_events_of_the_algorithm_occur_on_random_delays() -> None:
    buffered = timed_out = 0
    for seed in range(6):
        paper = Paper(Delays([0.1, 0.11, 0.5, 0.52, 2.0], seed))
        for _ in range(60):
            paper.play(len(paper.events) + 1)
            buffered += bool(paper.general_buffer)
            timed_out += any(not group["latest_arrival_time"] for group in paper.arrival_group.values())
    assert buffered > 5
    assert timed_out > 5


def test_keeps_the_contract_and_refuses_what_it_cannot_carry() -> None:
    assert check_policy(ArrivalGroups()) == "late"
    with pytest.raises(BadSetting, match="least must be at most most=10, got 20"):
        ArrivalGroups(most=10)
    with pytest.raises(BadSetting, match="work must be AllOrNothing"):
        method("fedcompass+batches")
    with pytest.raises(BadSetting, match="keeps updates only"):
        method("fedcompass+qffl")


def test_a_client_that_waits_for_its_group_is_not_selected_and_a_lost_one_does_not_hold_its_group() -> None:
    ledger = replace(make_ledger([10] * 3, batch_s=[1.0, 1.0, 1.0]), network_s=np.zeros(3))
    server = Server(method("fedcompass").server, make_setup(ledger, clients_per_round=3))
    state = server.init(np.zeros(2, dtype=np.float32))
    plan = server.plan(state, np.arange(3))
    assert dict(plan.order.steps) == {"c0": 100, "c1": 100, "c2": 100}
    report = make_report("c0", np.ones(2), 10.0)
    state = server.observe(state, RoundResult(plan, (report,), (), 90.0, under_way=("c1", "c2"), validated=True))
    assert state.late.waiting == ("c0",)
    second = server.plan(state, np.array([0]))
    assert (second.cohort, second.timer_s) == ((), 60.0)
    after = server.observe(state, RoundResult(second, (), (), 5.0, under_way=(), validated=True))
    assert (after.late.members, after.late.groups, after.late.waiting) == ((), (), ())
    assert after.weights == pytest.approx(np.full(2, 0.3))
