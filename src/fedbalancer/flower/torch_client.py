"""A ready client app for models in torch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedbalancer.flower.client import balanced
from fedbalancer.flower.compat import (
    ClientApp,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    reply_to,
)
from fedbalancer.flower.hello import introduce
from fedbalancer.flower.learner import Learner
from fedbalancer.flower.orders import ARRAYS, METRICS, OURS
from fedbalancer.methods import Method
from fedbalancer.protocols import Draw
from fedbalancer.task import Samples, check_samples

Hold = Callable[[Context, int], Draw | None]
"""(context, round) -> the seconds that an emulated device takes, or None for this machine's own."""


def client_app(
    model: Callable[[], Any],
    data: Callable[[Context], Samples],
    *,
    test: Callable[[Context], Samples] | None = None,
    method: Method | None = None,
    loss: str | Callable[[Any, Any], Any] = "cross_entropy",
    metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy",
    device: str = "cpu",
    threads: int | None = None,
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains `model()` on `data(context)`, a pair (features, labels) with a row a sample.

    Epochs, batch size, learning rate and method are the server's, sent with every order (`method` only for an object of
    your own, given on both sides). The client stops itself at the deadline. `test(context)` is what evaluate messages
    look at, by default the training data. `hold` makes this machine behave like a slower device: every batch is held to
    its seconds, and its download and upload are slept.
    """
    learner = Learner(model, loss, metric, device, threads)
    app = ClientApp()

    def size(context: Context) -> int:
        learner.prepare()
        return len(_samples(data, context)[1])

    def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
        draw = hold(context, 0) if hold is not None else None
        if draw is not None:
            return [draw.batch_s] * count
        return learner.timed(_samples(data, context), batch_size, count)

    introduce(app, size, batch_s=batch_s, fingerprint=lambda context: _fingerprint(_samples(data, context)))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        learner.prepare()  # before the clock of the work starts: to load torch is part of getting there
        samples = _samples(data, context)
        draw = _draw(hold, message, context)
        if draw is not None:
            time.sleep(draw.download_s)
        work = balanced(message, context, size=len(samples[1]), fingerprint=_fingerprint(samples), method=method)
        reply = learner.train(work, samples, None if draw is None else draw.batch_s)
        if draw is not None:
            time.sleep(draw.upload_s)
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        started = time.monotonic()
        samples = _samples(test if test is not None else data, context)
        accuracy, mean_loss = learner.evaluate(message.content.array_records[ARRAYS], samples)
        metrics = MetricRecord({"num-examples": len(samples[1]), "accuracy": accuracy, "loss": mean_loss})
        return reply_to(message, RecordDict({METRICS: metrics}), time.monotonic() - started)

    return app


def _samples(data: Callable[[Context], Samples], context: Context) -> Samples:
    samples = data(context)
    check_samples(samples, "the client's data", None)
    return np.asarray(samples[0]), np.asarray(samples[1])


def _fingerprint(samples: Samples) -> str:
    """A name of the data: of the labels and of some rows of the features, which is enough to tell data sets apart."""
    features, labels = samples
    digest = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=16)
    digest.update(np.ascontiguousarray(features[:: max(len(features) // 64, 1)]).tobytes())
    return digest.hexdigest()


def _draw(hold: Hold | None, message: Message, context: Context) -> Draw | None:
    if hold is None:
        return None
    return hold(context, int(str(message.content.config_records[OURS]["round"])))
