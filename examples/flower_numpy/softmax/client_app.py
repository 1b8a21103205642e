"""A client in plain NumPy. It calls `introduce` once, and `balanced`, `select` and `reply` in every round."""

import time
from collections.abc import Sequence

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedbalancer.flower import balanced, introduce
from softmax.model import CLASSES, FEATURES, losses, points, step

app = ClientApp()


def samples(context: Context):
    return points(int(context.node_config["partition-id"]))


def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
    """Time a few batches on a temporary model."""
    x, y = samples(context)
    weights, bias, seconds = np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES), []
    for _ in range(count):
        began = time.perf_counter()
        step(weights, bias, x[:batch_size], y[:batch_size], 0.1)
        seconds.append(max(time.perf_counter() - began, 1e-6))
    return seconds


introduce(app, lambda context: len(samples(context)[1]), batch_s=batch_s)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(context)
    work = balanced(message, context, size=len(y))
    weights, bias = (array.numpy().copy() for array in work.arrays.values())
    work.select(forward=lambda: losses(weights, bias, x, y))
    first_seen = np.full(len(y), np.nan)
    for rows in work.batches():  # batches of the selected samples, until the deadline
        before = losses(weights, bias, x[rows], y[rows])
        first_seen[rows] = np.where(np.isnan(first_seen[rows]), before, first_seen[rows])
        step(weights, bias, x[rows], y[rows], work.order.learning_rate)
    return work.reply([weights, bias], losses=first_seen)
