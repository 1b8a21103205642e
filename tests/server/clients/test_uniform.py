"""Uniform client selection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import Unchanged, make_ledger, make_setup, make_state
from scipy import stats

from fedbalancer.server.clients import Uniform


@pytest.mark.parametrize("wanted", [1, 3, 6, 9])
@pytest.mark.parametrize("available", [[], [2], [0, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_gives_exactly_k_different_available_clients(wanted: int, available: list[int]) -> None:
    setup, state, rows = make_setup(clients_per_round=wanted), make_state(), np.array(available, dtype=np.int64)
    with Unchanged(setup, state, rows):
        chosen = Uniform().select_clients(setup, state, rows)
    assert len(chosen) == min(wanted, len(available))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(available)


def test_everybody_is_as_likely_as_any_other() -> None:
    ledger = make_ledger([1, 10, 100, 1000, 5, 7], network_s=[1, 2, 3, 4, 5, 6])
    setup, state = make_setup(ledger), make_state(ledger)
    seen = np.zeros(6)
    for round in range(2000):
        seen[Uniform().select_clients(setup, replace(state, round=round), np.arange(6))] += 1
    assert stats.chisquare(seen).pvalue > 0.001


def test_the_same_round_gives_the_same_clients_and_another_seed_others() -> None:
    ledger = make_ledger([100] * 50)
    setup, state, rows = make_setup(ledger), make_state(ledger), np.arange(50)
    first = Uniform().select_clients(setup, state, rows)
    assert np.array_equal(first, Uniform().select_clients(setup, replace(state, clock_s=9.0), rows))
    assert not np.array_equal(first, Uniform().select_clients(replace(setup, seed=1), state, rows))
