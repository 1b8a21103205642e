"""What the server expects of a client's time, from what it has heard so far."""

from __future__ import annotations

import numpy as np

from fedbalancer.types import FloatArray, IndexArray, Ledger, Setup

FORWARD_PASS_EPOCHS = 0.5
"""A forward pass over all data takes half the time of one training epoch."""


def batches(samples: FloatArray | IndexArray, batch_size: int, epoch_batches: int | None = None) -> FloatArray:
    """Batches per epoch, the short last one included: floor((m - 1) / B) + 1, never fewer than one, and at most
    `epoch_batches` where every epoch is cut short.

    >>> batches(np.array([1, 10, 11]), 10)
    array([1., 1., 2.])
    """
    whole = np.maximum(np.floor((np.asarray(samples, dtype=np.float64) - 1) / batch_size) + 1, 1.0)
    return np.asarray(whole if epoch_batches is None else np.minimum(whole, epoch_batches))


def completion_s(ledger: Ledger, epoch_batches: FloatArray, epochs: float, rows: IndexArray | slice) -> FloatArray:
    """Expected seconds from send to report: network at mean speed plus `epochs` epochs at the mean batch latency."""
    batch_s = ledger.batch_s_sum[rows] / ledger.batch_s_count[rows]
    return np.asarray(ledger.network_s[rows] + epoch_batches * batch_s * epochs)


def mean_completion_s(setup: Setup, forward_pass: bool = False) -> float:
    """The paper's T: mean expected completion time over all training clients, before the first round.

    Clients over a sample cap count with the cap. `forward_pass` adds the first forward pass, as FedBalancer's initial
    deadline does.
    """
    size = setup.ledger.size if setup.sample_cap is None else np.minimum(setup.ledger.size, setup.sample_cap)
    trained = setup.epochs * batches(size, setup.batch_size, setup.epoch_batches)
    looked = FORWARD_PASS_EPOCHS * batches(size, setup.batch_size) if forward_pass else 0.0
    return float(completion_s(setup.ledger, trained + looked, 1, slice(None)).mean())


def whole_seconds(seconds: float) -> float:
    """Deadlines were cut to whole seconds before training; a task faster than a second keeps its fraction."""
    return float(int(seconds)) if seconds >= 1 else seconds
