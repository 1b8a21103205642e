"""Expected completion times, computed from what clients have reported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import (
    FloatArray,
    IndexArray,
    Ledger,
    Setup,
    batches_per_epoch,
)

Rows = IndexArray | slice


def completion_s(setup: Setup, ledger: Ledger, per_epoch: NDArray[Any], epochs: float, rows: Rows) -> FloatArray:
    """Return each client's expected seconds from order to report.

    This is the network time at mean speed, plus `epochs` epochs of `per_epoch` batches at the mean batch latency, plus
    a forward pass if the method makes one every round.

    Args:
        setup: Constants of the run.
        ledger: The server's ledger.
        per_epoch: Batches per epoch of each client.
        epochs: Number of epochs.
        rows: Ledger rows of the clients.

    Returns:
        Seconds per client.
    """
    batch_s = ledger.batch_s_sum[rows] / ledger.batch_s_count[rows]
    expected = ledger.network_s[rows] + per_epoch * batch_s * epochs
    if setup.forward_pass_every_round:
        expected = expected + forward_pass_batches(setup, ledger.size[rows]) * batch_s
    return np.asarray(expected)


def expected_s(setup: Setup, ledger: Ledger, rows: Rows) -> FloatArray:
    """Return each client's expected seconds from order to report, from its recent rounds.

    It assumes `setup.epochs` epochs over the mean of the client's last five sample counts (all its samples before the
    first round), the mean of its reported batch latencies and its mean network speed. Half an epoch is added if the
    method makes a forward pass every round. The actual speed in the round is unknown, and a deadline that cuts epochs
    is ignored.

    Args:
        setup: Constants of the run.
        ledger: The server's ledger.
        rows: Ledger rows of the clients, or a slice.

    Returns:
        Seconds per client.

    Example:
        >>> from fedbalancer.core.types import Ledger
        >>> sizes, network_s, batch_s = np.array([10, 40]), np.array([3.0, 5.0]), np.array([[0.5], [1.0]])
        >>> ledger = Ledger.start(("ann", "bob"), sizes, network_s, batch_s)
        >>> setup = Setup(ledger, epochs=2, batch_size=10, clients_per_round=1, seed=0)
        >>> expected_s(setup, ledger, np.array([0, 1])).tolist()
        [4.0, 13.0]
    """
    trained = ledger.recent_trained[rows].mean(axis=1)
    per_epoch = setup.per_epoch(trained)
    return completion_s(setup, ledger, per_epoch, setup.epochs, rows)


def expected_first_s(setup: Setup, ledger: Ledger, rows: Rows) -> FloatArray:
    """Return `expected_s` of clients that have never reported, which train all their samples.

    It takes a tenth of the time for a million clients, because counts are integers.

    Args:
        setup: Constants of the run.
        ledger: The server's ledger.
        rows: Ledger rows of the clients, or a slice.
    """
    per_epoch = setup.per_epoch(ledger.size[rows])
    return completion_s(setup, ledger, per_epoch, setup.epochs, rows)


def forward_pass_batches(setup: Setup, size: IndexArray) -> FloatArray:
    """Return the duration of a forward pass over all samples, in training batches.

    Args:
        setup: Constants of the run.
        size: Number of samples of each client.
    """
    return np.asarray(setup.forward_epochs * batches_per_epoch(size, setup.batch_size))


def mean_completion_s(setup: Setup, forward_pass: bool = False) -> float:
    """Return the paper's T: the mean expected completion time over all training clients, before the first round.

    Args:
        setup: Constants of the run. Clients with more samples than its `sample_cap` count with the cap.
        forward_pass: Whether to add one forward pass, as FedBalancer's initial deadline does.

    Returns:
        Seconds.
    """
    ledger = setup.ledger
    size = ledger.size if setup.sample_cap is None else np.minimum(ledger.size, setup.sample_cap)
    trained = setup.epochs * setup.per_epoch(size)
    forward = forward_pass_batches(setup, size) if forward_pass else 0.0
    return float((ledger.network_s + (trained + forward) * ledger.batch_s).mean())


def whole_seconds(seconds: float) -> float:
    """Truncate to whole seconds, as the authors' code does with deadlines. Less than one second stays unchanged.

    Args:
        seconds: A duration.
    """
    return float(int(seconds)) if seconds >= 1 else seconds
