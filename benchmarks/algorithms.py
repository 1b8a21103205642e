"""The server's algorithms against the paper's pseudo-code taken literally, and on a million clients.

    python benchmarks/algorithms.py [--json]

Ratios are medians of interleaved repeats on the same data; seconds are of this machine and this moment only.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import fedbalancer as fb
from fedbalancer.core.types import FloatArray, Ledger, ServerState, Setup
from fedbalancer.server.clients import OverThresholdUtility
from fedbalancer.server.deadline import PeakDeadline, peak_deadline
from fedbalancer.server.pace import PaceState

REPEATS = 5


def scan_over_seconds(completion: FloatArray) -> float:
    """Lines 8 to 30 of Algorithm 4 as printed, with the inner loop over clients as one NumPy comparison."""
    best, best_t, t, count = -1.0, 0.0, 1, 0
    while count != len(completion):
        count = int((completion <= t).sum())
        if count / t > best:
            best, best_t = count / t, float(t)
        t += 1
    return best_t


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def million() -> tuple[Setup, ServerState]:
    rng = np.random.default_rng(0)
    count = 1_000_000
    ledger = Ledger.start(
        tuple(map(str, range(count))),
        rng.integers(10, 400, count),
        rng.exponential(5, count),
        rng.random((count, 10)) + 0.1,
    )
    known = rng.random(count) < 0.5
    ledger = replace(
        ledger,
        participations=known.astype(np.int64),
        last_round=known.astype(np.int64),
        over_count=np.where(known, rng.integers(1, 100, count), np.nan),
        over_sumsq=np.where(known, rng.random(count) * 100, np.nan),
    )
    setup = Setup(ledger, epochs=5, batch_size=10, clients_per_round=100, seed=0)
    state = ServerState(10, 0.0, np.zeros(1, np.float32), ledger, pace=PaceState())
    return setup, replace(state, clients=OverThresholdUtility().init(setup), deadline=PeakDeadline().init(setup))


def main() -> None:
    completion = np.random.default_rng(0).lognormal(4.5, 0.8, 1000)
    assert peak_deadline(completion)[0] == scan_over_seconds(completion)
    pairs = [
        (seconds(lambda: scan_over_seconds(completion)), seconds(lambda: peak_deadline(completion)))
        for _ in range(REPEATS)
    ]
    setup, state = million()
    everybody = np.arange(len(setup.ledger.clients))
    result = {
        "peak_deadline_ratio_to_scan_1000_clients": statistics.median(scan / ours for scan, ours in pairs),
        "peak_deadline_million_clients_s": statistics.median(
            seconds(lambda: PeakDeadline().plan(setup, state, everybody)) for _ in range(REPEATS)
        ),
        "client_selection_million_clients_s": statistics.median(
            seconds(lambda: OverThresholdUtility().select_clients(setup, state, everybody)) for _ in range(REPEATS)
        ),
        "timing_only_1000_rounds_100_of_10000_s": {
            method: seconds(
                lambda method=method: fb.run(
                    "synthetic",
                    method,
                    users=10_000,
                    rounds=1000,
                    settings={"clients_per_round": 100},
                    timing_only=True,
                )
            )
            for method in ("fedavg+1t", "fedbalancer")
        },
    }
    print(json.dumps(result) if "--json" in sys.argv else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
