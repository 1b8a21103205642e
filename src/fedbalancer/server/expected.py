"""What the server expects of a client's time, from what it has heard so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.types import (
    FORWARD_PASS_EPOCHS,
    FloatArray,
    IndexArray,
    Ledger,
    Setup,
    batches_per_epoch,
)

Rows = IndexArray | slice


def completion_s(setup: Setup, ledger: Ledger, per_epoch: NDArray[Any], epochs: float, rows: Rows) -> FloatArray:
    """Expected seconds from send to report: network at mean speed plus `epochs` epochs of `per_epoch` batches at the
    mean batch latency, and a forward pass where the method makes one every round."""
    batch_s = ledger.batch_s_sum[rows] / ledger.batch_s_count[rows]
    expected = ledger.network_s[rows] + per_epoch * batch_s * epochs
    if setup.forward_pass_every_round:
        expected = expected + look_batches(setup, ledger.size[rows]) * batch_s
    return np.asarray(expected)


def expected_s(setup: Setup, ledger: Ledger, rows: Rows) -> FloatArray:
    """Seconds that each client in these rows of the ledger is expected to take from the order to its report.

    Assumed are: as many samples as it has trained lately (the mean of the last five counts; before the first round all
    that it has) for all `setup.epochs`; batches at the mean of all batch latencies that the server has seen of it; its
    network's mean speed; and half an epoch more where the method makes a forward pass every round. How fast phone and
    network will be in this very round nobody knows before, and a deadline that cuts epochs is not counted.
    """
    trained = ledger.recent_trained[rows].mean(axis=1)
    per_epoch = batches_per_epoch(trained, setup.batch_size, setup.epoch_batches)
    return completion_s(setup, ledger, per_epoch, setup.epochs, rows)


def expected_first_s(setup: Setup, ledger: Ledger, rows: Rows) -> FloatArray:
    """The same of clients never heard of, who are expected to train all their samples: a million counts in integers
    take a tenth of the time."""
    per_epoch = batches_per_epoch(ledger.size[rows], setup.batch_size, setup.epoch_batches)
    return completion_s(setup, ledger, per_epoch, setup.epochs, rows)


def look_batches(setup: Setup, size: IndexArray) -> FloatArray:
    """How many training batches a forward pass over all data takes as long as."""
    return np.asarray(FORWARD_PASS_EPOCHS * batches_per_epoch(size, setup.batch_size))


def mean_completion_s(setup: Setup, forward_pass: bool = False) -> float:
    """The paper's T: mean expected completion time over all training clients, before the first round.

    Clients over a sample cap count with the cap. `forward_pass` adds one forward pass, as FedBalancer's initial
    deadline does.
    """
    ledger = setup.ledger
    size = ledger.size if setup.sample_cap is None else np.minimum(ledger.size, setup.sample_cap)
    trained = setup.epochs * batches_per_epoch(size, setup.batch_size, setup.epoch_batches)
    looked = look_batches(setup, size) if forward_pass else 0.0
    return float((ledger.network_s + (trained + looked) * ledger.batch_s).mean())


def whole_seconds(seconds: float) -> float:
    """Deadlines were cut to whole seconds before training; a task faster than a second keeps its fraction."""
    return float(int(seconds)) if seconds >= 1 else seconds
