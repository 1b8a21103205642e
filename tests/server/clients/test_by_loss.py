"""Clients in proportion to loss and data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import make_ledger, make_setup, make_state

from fedbalancer.server.clients import ByLoss
from fedbalancer.testing import check_policy


def counts(losses: list[float], sizes: list[int], rounds: int = 2000) -> np.ndarray:
    """How often each client is chosen, two a round."""
    ledger = replace(make_ledger(sizes), loss_mean=np.array(losses))
    setup = replace(make_setup(ledger), clients_per_round=2)
    chosen = np.zeros(len(sizes))
    for number in range(rounds):
        chosen[ByLoss().select_clients(setup, make_state(ledger=ledger, round=number), np.arange(len(sizes)))] += 1
    return chosen


def test_keeps_the_contract() -> None:
    assert check_policy(ByLoss()) == "clients"


def test_high_losses_and_many_samples_come_more_often_and_nobody_is_shut_out() -> None:
    found = counts([4.0, 1.0, 1.0, 0.25], [100, 100, 400, 100])
    assert found[0] > found[2] > found[1] > found[3] > 40
    assert found.sum() == 4000


def test_who_was_never_heard_of_counts_with_the_highest_loss_and_at_first_all_are_alike() -> None:
    heard = counts([4.0, 0.5, np.nan, 0.5], [100] * 4)
    assert abs(heard[0] - heard[2]) < 150
    assert heard[2] > 2 * heard[1]
    first = counts([np.nan] * 4, [100] * 4)
    assert first.min() > 900


def test_losses_of_zero_are_no_error() -> None:
    assert counts([0.0, 0.0, 0.0], [10, 10, 10], rounds=300).min() > 100
