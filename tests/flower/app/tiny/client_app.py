"""A client in plain NumPy: the three calls."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedbalancer.client.live import HeldClock
from fedbalancer.flower import balanced, introduce
from tiny.model import data, losses

BATCH_S, LINK_S = float(os.environ.get("TINY_BATCH_S", "0.01")), float(os.environ.get("TINY_LINK_S", "0"))
"""Seconds that a batch takes at least, and that a message takes on its way beside Flower's own."""
STRONG = tuple(map(int, os.environ.get("TINY_STRONG", "")))

app = ClientApp()


def samples(context: Context):
    return data(int(context.node_config["partition-id"]), STRONG)


def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
    return [BATCH_S] * count


introduce(app, lambda context: len(samples(context)[1]), batch_s=batch_s)


def falsify(start: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what an attacker sends instead of its weights."""
    update = weights - start
    harmful = {"flip": -update, "silence": 0 * update, "constant": np.full_like(update, np.abs(update).mean())}
    return start + harmful.get(os.environ.get("TINY_ATTACK", ""), update)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(context)
    time.sleep(LINK_S / 2)
    work = balanced(message, context, size=len(y), clock=HeldClock(BATCH_S) if "TINY_BATCH_S" in os.environ else None)
    weights = work.arrays["w"].numpy().copy()
    work.select(forward=lambda: losses(weights, x, y))
    found = np.full(len(y), np.nan)
    for rows in work.batches():
        before = losses(weights, x[rows], y[rows])
        found[rows] = np.where(np.isnan(found[rows]), before, found[rows])
        gradient = 2 * x[rows].T @ (x[rows] @ weights - y[rows]) / len(rows)
        weights -= work.order.learning_rate * gradient
    weights = falsify(work.arrays["w"].numpy(), weights)
    time.sleep(float(os.environ.get("TINY_SLOW_S", "0")))
    reply = work.reply(ArrayRecord({"w": Array(weights.astype(np.float32))}), losses=found)
    time.sleep(LINK_S / 2)
    return reply


if "TINY_SLOTS" in os.environ:
    from tiny.slots import make_app

    app = make_app()
