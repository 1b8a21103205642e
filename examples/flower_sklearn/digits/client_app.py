"""A client with scikit-learn. It calls `introduce` once, and `balanced`, `select` and `reply` in every round."""

import time
from collections.abc import Sequence

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from digits.model import classifier, losses, part, start
from fedbalancer.flower import balanced, introduce

app = ClientApp()


def samples(context: Context):
    return part(int(context.node_config["partition-id"]))


def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
    """Time a few batches on a temporary model."""
    x, y = samples(context)
    model, seconds = classifier(start()), []
    for _ in range(count):
        began = time.perf_counter()
        model.partial_fit(x[:batch_size], y[:batch_size])
        seconds.append(max(time.perf_counter() - began, 1e-6))
    return seconds


introduce(app, lambda context: len(samples(context)[1]), batch_s=batch_s)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(context)
    work = balanced(message, context, size=len(y))
    model = classifier(work.arrays.to_numpy_ndarrays(), work.order.learning_rate)
    work.select(forward=lambda: losses(model, x, y))
    first_seen = np.full(len(y), np.nan)
    for rows in work.batches():  # batches of the selected samples, until the deadline
        before = losses(model, x[rows], y[rows])
        first_seen[rows] = np.where(np.isnan(first_seen[rows]), before, first_seen[rows])
        model.partial_fit(x[rows], y[rows])
    return work.reply([model.coef_, model.intercept_], losses=first_seen)
