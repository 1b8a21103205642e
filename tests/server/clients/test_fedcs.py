"""FedCS: the fastest of the clients that were asked."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from builders import Unchanged, heard, make_ledger, make_setup, make_state
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedbalancer.core.types import Ledger
from fedbalancer.server.clients import FedCS

durations = st.lists(st.integers(1, 60).map(float), min_size=1, max_size=12)


def lasting(seconds: list[float]) -> Ledger:
    """Clients whose round takes so long, and 5 s of training."""
    return make_ledger([10] * len(seconds), network_s=seconds)


@given(durations, st.integers(1, 15), st.floats(1, 65))
def test_no_k_candidates_hold_more_that_meet_a_deadline(seconds: list[float], k: int, deadline_s: float) -> None:
    ledger = lasting(seconds)
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    chosen = FedCS(100.0).select_clients(setup, state, np.arange(len(seconds)))
    in_time = [second + 5 <= deadline_s for second in seconds]
    every = itertools.combinations(range(len(seconds)), min(k, len(seconds)))
    assert sum(in_time[row] for row in chosen) == max(sum(in_time[row] for row in cohort) for cohort in every)


@given(durations, st.integers(1, 15), st.floats(1, 4), st.data())
def test_gives_exactly_k_different_available_clients(
    seconds: list[float], k: int, candidates: float, data: st.DataObject
) -> None:
    ledger = lasting(seconds)
    available = np.array(sorted(data.draw(st.sets(st.integers(0, len(seconds) - 1)))), dtype=np.int64)
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    with Unchanged(setup, state, available):
        chosen = FedCS(candidates).select_clients(setup, state, available)
    assert len(chosen) == min(k, len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available.tolist())


def test_asks_at_random() -> None:
    ledger = lasting([1.0, 2.0, 3.0, 4.0])
    setup, state = make_setup(ledger, clients_per_round=1), make_state(ledger)
    seen = np.zeros(4)
    for seed in range(2000):
        seen[FedCS(2.0).select_clients(replace(setup, seed=seed), state, np.arange(4))] += 1
    # The fastest of every pair of the four.
    assert seen[3] == 0
    assert stats.chisquare(seen[:3], 2000 * np.array([3, 2, 1]) / 6).pvalue > 0.001


def test_expects_the_time_of_the_samples_trained_lately() -> None:
    ledger = heard(make_ledger([100] * 3), [1], recent_trained=10.0)
    setup, state = make_setup(ledger, clients_per_round=1), make_state(ledger)
    assert FedCS(100.0).select_clients(setup, state, np.arange(3)).tolist() == [1]


def test_expects_the_batches_that_an_epoch_has() -> None:
    ledger = make_ledger([100, 10], network_s=[10.0, 11.0])
    state = make_state(ledger)
    for epoch_batches, fastest in ((None, 1), (1, 0)):
        setup = make_setup(ledger, clients_per_round=1, epoch_batches=epoch_batches)
        assert FedCS(100.0).select_clients(setup, state, np.arange(2)).tolist() == [fastest]


@pytest.mark.parametrize(("candidates", "k", "worst"), [(1.0, 3, 9), (2.0, 3, 6), (1.5, 2, 8)])
def test_asks_so_many(candidates: float, k: int, worst: int) -> None:
    ledger = lasting([float(number + 1) for number in range(10)])
    setup, state = make_setup(ledger, clients_per_round=k), make_state(ledger)
    last = [
        FedCS(candidates).select_clients(replace(setup, seed=seed), state, np.arange(10)).max() for seed in range(2000)
    ]
    assert max(last) == worst  # with d asked, at least d - k of them are slower
