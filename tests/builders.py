"""Small values for the tests: setups, states, reports and round results with defaults that no test relies on."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedbalancer.core.types import (
    ClientReport,
    FailedClient,
    Ledger,
    Order,
    RoundPlan,
    RoundResult,
    ServerState,
    Setup,
    Summary,
    Timings,
)
from fedbalancer.methods.table import MODIFIERS
from fedbalancer.server.clients.over_threshold import OverThresholdState
from fedbalancer.server.pace import PaceState

MODIFIED = tuple(f"{'prox+1t' if modifier == '+silent' else 'fedbalancer'}{modifier}" for modifier in MODIFIERS)
"""A method with each modifier. FedBalancer steers by losses, so it cannot be silent about them."""


def make_order(**changes: Any) -> Order:
    return replace(Order(round=1, loss_threshold=0.0, deadline_s=100.0, epochs=5, batch_size=10, seed=0), **changes)


def make_summary(**changes: Any) -> Summary:
    losses = {"loss_low": 0.1, "loss_high": 2.0, "loss_sum": 10.0, "loss_count": 10.0}
    base = Summary(**losses, over_count=5.0, over_sumsq=5.0, trained=10, batch_s=1.0)
    return replace(base, **changes)


def make_report(
    client: str = "c0", update: Sequence[float] = (0.0, 0.0), weight: float = 10.0, **summary: Any
) -> ClientReport:
    return ClientReport(client, np.array(update, dtype=np.float32), weight, 5.0, make_summary(**summary), Timings())


def make_result(
    reports: Sequence[ClientReport] = (),
    missing: Sequence[str] = (),
    seconds: float = 50.0,
    window_s: float = 20.0,
    **order: Any,
) -> RoundResult:
    cohort = tuple(sorted([report.client for report in reports] + list(missing)))
    plan = RoundPlan(make_order(**order), cohort, len(cohort))
    return RoundResult(
        plan, tuple(reports), tuple(FailedClient(client, "train") for client in missing), seconds, window_s
    )


def names(count: int) -> tuple[str, ...]:
    return tuple(f"c{number}" for number in range(count))


def make_ledger(
    size: Sequence[int] = (100,) * 6, network_s: float | Sequence[float] = 10.0, batch_s: float | Sequence[float] = 1.0
) -> Ledger:
    """Clients c0, c1, ... of these sizes; one pre-sampled batch latency each."""
    count = len(size)
    latencies = np.broadcast_to(np.asarray(batch_s, dtype=np.float64), (count,)).reshape(-1, 1)
    network = np.array(np.broadcast_to(np.asarray(network_s, dtype=np.float64), (count,)))
    return Ledger.start(names(count), np.asarray(size), network, latencies)


def heard(ledger: Ledger, rows: Sequence[int], **columns: Any) -> Ledger:
    """The ledger after the clients in these rows have reported once, in round 1; `columns` overrides theirs."""
    values: dict[str, Any] = {"participations": 1, "last_round": 1, "over_count": 5.0, "over_sumsq": 5.0, **columns}
    fresh = {}
    for name, value in values.items():
        fresh[name] = getattr(ledger, name).copy()
        fresh[name][list(rows)] = value
    return replace(ledger, **fresh)


def known_clients(utility: Sequence[float], **columns: Any) -> Ledger:
    """Clients that have all reported, with these utilities sqrt(over_count over_sumsq)."""
    values = np.asarray(utility, dtype=np.float64)
    return heard(make_ledger([100] * len(values)), range(len(values)), over_count=1.0, over_sumsq=values**2, **columns)


def make_setup(ledger: Ledger | None = None, **changes: Any) -> Setup:
    ledger = ledger if ledger is not None else make_ledger()
    return replace(Setup(ledger, epochs=5, batch_size=10, clients_per_round=3, seed=0), **changes)


def make_state(ledger: Ledger | None = None, **changes: Any) -> ServerState:
    """A state after round 1 with the ratios at their start."""
    ledger = ledger if ledger is not None else make_ledger()
    state = ServerState(round=1, clock_s=100.0, weights=np.zeros(2, dtype=np.float32), ledger=ledger, pace=PaceState())
    return replace(state, **changes)


def oort_world(
    ledger: Ledger, exploration: float = 0.0, preferred_s: float = math.inf, **setup: Any
) -> tuple[Setup, ServerState]:
    """Setup and state after ten rounds of a method that selects clients by their utility."""
    return make_setup(ledger, **setup), make_state(
        ledger, round=10, clients=OverThresholdState(exploration, preferred_s)
    )


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, arrays and nested values included; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


class Unchanged:
    """Checks at the end of a `with` block that nothing in it changed these values."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __enter__(self) -> None:
        self.before = copy.deepcopy(self.values)

    def __exit__(self, *_: object) -> None:
        assert same(self.before, self.values), "an argument was changed in place"
