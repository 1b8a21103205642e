"""A client in plain NumPy that fails as its script says."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from faulty.faults import AFTER, BEFORE, DURING, REPLIES
from faulty.journal import Journal
from faulty.model import METHOD, data, losses
from fedbalancer.flower import LocalRound, balanced, introduce

app = ClientApp()


def samples(context: Context) -> tuple[NDArray[Any], NDArray[Any]]:
    return data(int(context.node_config["partition-id"]))


introduce(app, lambda context: len(samples(context)[1]), batch_s=lambda context, size, count: [0.01] * count)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = samples(context)
    work = balanced(message, context, size=len(y), method=METHOD)
    journal, round = Journal(context), work.order.round
    fault = journal.begin(round)
    _commit(BEFORE, fault, work)
    reply = _trained(work, x, y, fault)
    journal.sent(round, fault, reply)
    reply = REPLIES.get(fault, lambda work, honest: honest)(work, reply)
    _commit(AFTER, fault, work)
    return reply


def _trained(work: LocalRound, x: NDArray[Any], y: NDArray[Any], fault: str) -> Message:
    weights = work.weights().astype(np.float64)
    work.select(forward=lambda: losses(weights, x, y))
    found = np.full(len(y), np.nan)
    for number, rows in enumerate(work.batches()):
        before = losses(weights, x[rows], y[rows])
        found[rows] = np.where(np.isnan(found[rows]), before, found[rows])
        gradient = 2 * x[rows].T @ (x[rows] @ weights - y[rows]) / len(rows)
        weights -= work.order.learning_rate * gradient
        if number == 0:
            _commit(DURING, fault, work)
    return work.reply(ArrayRecord({"w": Array(weights.astype(np.float32))}), losses=found)


def _commit(faults: dict[str, Any], fault: str, work: LocalRound) -> None:
    if fault in faults:
        faults[fault](work)
