"""The limit by arithmetic: how many products a sample needs, and how many this machine makes a second."""

from __future__ import annotations

import time
import warnings

from fedbalancer.client.tensors import per_sample_loss, to_tensors
from fedbalancer.task import Task

SIDE = 1024
"""Of the square matrices whose product is timed: 4 MB each, large enough for every core to be busy with arithmetic."""


def flop_per_sample(task: Task) -> float:
    """Floating-point operations of one sample's forward and backward pass in a batch of the task's size, counted by
    torch in matrix products and convolutions; all else is left out, so the limit is one that nobody reaches.

    >>> import numpy as np
    >>> from torch import nn
    >>> data = np.zeros((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64)
    >>> flop_per_sample(Task({"ann": data}, data, lambda: nn.Linear(3, 2), batch_size=2))  # 2 x 3 x 2, there and back
    24.0
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    features, labels = (part[: task.batch_size] for part in to_tensors(next(iter(task.clients.values()))))
    module = task.model()
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that some graphics card has TF32
        # oneDNN's LSTM is one operation that the counter does not know; without it, it is its products.
        with torch.backends.mkldnn.flags(enabled=False), counter:
            torch.autograd.backward(per_sample_loss(task.loss)(module(features), labels).mean())
    return float(counter.get_total_flops()) / len(labels)


def peak_flop_per_s(seconds: float, threads: int) -> float:
    """The best rate of float32 matrix products that `threads` threads reach within `seconds`."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        out = torch.empty(SIDE, SIDE)
        torch.mm(left, right, out=out)
        best_s, until = float("inf"), time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            torch.mm(left, right, out=out)
            best_s = min(best_s, time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)
    return 2 * SIDE**3 / best_s
