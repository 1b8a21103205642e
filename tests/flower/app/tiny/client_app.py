"""A client in plain NumPy: the three calls."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedbalancer.flower import balanced, introduce
from tiny.model import data, losses

app = ClientApp()


def samples(context: Context):
    return data(int(context.node_config["partition-id"]))


def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
    return [0.01] * count


introduce(app, lambda context: len(samples(context)[1]), batch_s=batch_s)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(context)
    work = balanced(message, context, size=len(y))
    weights = work.arrays["w"].numpy().copy()
    work.select(forward=lambda: losses(weights, x, y))
    found = np.full(len(y), np.nan)
    for rows in work.batches():
        before = losses(weights, x[rows], y[rows])
        found[rows] = np.where(np.isnan(found[rows]), before, found[rows])
        gradient = 2 * x[rows].T @ (x[rows] @ weights - y[rows]) / len(rows)
        weights -= work.order.learning_rate * gradient
    time.sleep(float(os.environ.get("TINY_SLOW_S", "0")))
    return work.reply(ArrayRecord({"w": Array(weights.astype(np.float32))}), losses=found)
