"""A ready client app for any model that can be trained, looked through, evaluated and timed here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedbalancer.client.live import HeldClock, WallClock
from fedbalancer.core.interfaces import Draw, Training
from fedbalancer.core.task import Samples, check_samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights
from fedbalancer.flower.client import LocalRound, balanced, introduce
from fedbalancer.flower.compat import (
    ClientApp,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    reply_to,
)
from fedbalancer.flower.messages import ARRAYS, METRICS, ModelLayout, reorder, round_of
from fedbalancer.flower.mods import Mod, check_mods, skip_without_arrays
from fedbalancer.training.tensors import prepare_samples

if TYPE_CHECKING:
    from fedbalancer.training.model_file import ModelFile
    from fedbalancer.training.sgd import MakeOptimizer
    from fedbalancer.training.trainer import TorchModel

Hold = Callable[[Context, int], Draw | None]
"""(context, round) -> the seconds that an emulated device takes, or None for this machine's own."""

Data = Callable[[Context], Samples]


class LocalModel(Protocol):
    """A model on this machine: pure functions of weights and samples."""

    @property
    def layout(self) -> Layout: ...
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> AbstractContextManager[Training]: ...
    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray: ...
    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation: ...
    def time_batches(self, samples: Samples, batch_size: int, count: int) -> list[float]: ...


def model_app(
    ready: Callable[[Samples], LocalModel],
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains `ready(samples)`, which is asked for every message, on `data(context)`; the rest is as
    in `client_app`."""
    check_mods(mods)
    app = ClientApp()

    def samples_and_model(context: Context) -> tuple[Samples, LocalModel]:
        samples = _samples(data, context)
        return samples, ready(samples)

    def size(context: Context) -> int:
        return len(samples_and_model(context)[0][1])

    def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
        draw = hold(context, 0) if hold is not None else None
        if draw is not None:
            return [draw.batch_s] * count
        samples, model = samples_and_model(context)
        return model.time_batches(samples, batch_size, count)

    introduce(app, size, batch_s=batch_s, fingerprint=lambda context: _fingerprint(_samples(data, context)))

    @app.train(mods=[skip_without_arrays(mod) for mod in mods])
    def train(message: Message, context: Context) -> Message:
        samples, model = samples_and_model(context)  # before the clock starts: to load it is part of getting there
        draw = _draw(hold, message, context)
        clock = WallClock() if draw is None else HeldClock(draw.batch_s)
        if draw is not None:
            time.sleep(draw.download_s)
        work = balanced(
            message, context, size=len(samples[1]), fingerprint=_fingerprint(samples), method=method, clock=clock,
            labels=lambda: samples[1],
        )  # fmt: skip
        reply = work.report(_trained(work, model, samples), as_model=bool(mods))
        if draw is not None:
            time.sleep(draw.upload_s)
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        started = time.monotonic()
        (_, model), arrays = samples_and_model(context), message.content.array_records[ARRAYS]
        samples = _samples(test if test is not None else data, context)
        layout = ModelLayout.of(arrays)
        found = model.evaluate(reorder(layout.flat(arrays), layout.layout, model.layout), samples)
        metrics = MetricRecord({"num-examples": found.samples, "accuracy": found.accuracy, "loss": found.loss})
        return reply_to(message, RecordDict({METRICS: metrics}), time.monotonic() - started)

    return app


def _trained(work: LocalRound, model: LocalModel, samples: Samples) -> TrainResult | None:
    """What the client trained of the order, as far as it counts; the update in the order of the model that was sent."""
    sent = work.layout.layout
    weights = reorder(work.weights(), sent, model.layout)
    work.select(forward=lambda: model.losses(weights, samples, work.client))
    with model.training(weights, samples, work.client_work()) as training:
        trained = work.live.train_by(training)
    return None if trained is None else replace(trained, update=reorder(trained.update, model.layout, sent))


def _samples(data: Callable[[Context], Samples], context: Context) -> Samples:
    samples = data(context)
    check_samples(samples, "the client's data", None)
    return prepare_samples(samples)


def _fingerprint(samples: Samples) -> str:
    """A name of the data: of the labels and of some rows of the features, which is enough to tell data sets apart."""
    features, labels = samples
    digest = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=16)
    digest.update(np.ascontiguousarray(features[:: max(len(features) // 64, 1)]).tobytes())
    return digest.hexdigest()


def _draw(hold: Hold | None, message: Message, context: Context) -> Draw | None:
    if hold is None:
        return None
    return hold(context, round_of(message))


EXAMPLE = 10
"""Samples on which the layers of the model are tried."""


def client_app(
    model: Callable[[], Any],
    data: Callable[[Context], Samples],
    *,
    test: Callable[[Context], Samples] | None = None,
    method: Any = None,
    loss: str | Callable[[Any, Any], Any] = "cross_entropy",
    metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy",
    optimizer: MakeOptimizer | None = None,
    backend: str = "fast",
    device: str = "cpu",
    threads: int | None = None,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains `model()` on `data(context)`, a pair (features, labels) with one row per sample.

    Epochs, batch size, learning rate and method are the server's, sent with every order (`method` only for an object of
    your own, given on both sides). The client stops itself at the deadline. `optimizer` is a class of torch.optim, or a
    partial of one, in place of plain SGD; the learning rate is the server's. `backend` is fast or plain, as in `run`.
    `test(context)` is what evaluate messages look at, by default the training data. `mods` are Flower's (`LocalDpMod`),
    around training; the model is then sent under its names, for them to see. `hold` makes this machine behave
    like a slower device: every batch is held to its seconds, and its download and upload are slept.
    """

    @cache
    def ready() -> TorchModel:
        """The model of the app; made when it is first needed, because an app is imported more often than it trains."""
        from fedbalancer.training.trainer import TorchModel

        built = TorchModel(
            model, loss=loss, metric=metric, backend=backend, device=device, optimizer=optimizer,
            example=lambda: example[0],
        )  # fmt: skip
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        _ = built.plan  # so that no round pays for trying the layers
        return built

    example: list[Any] = []

    def tried(samples: Samples) -> TorchModel:
        example[:] = [samples[0][:EXAMPLE]]
        return ready()

    return model_app(tried, data, test=test, method=method, mods=mods, hold=hold)


def device_app(
    file: Path | str,
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    threads: int = 1,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
) -> ClientApp:
    """A `ClientApp` that trains the model in `file` on `data(context)`, a pair (features, labels) with one row per
    sample. The server's model must be the one that was exported: the same names and shapes, in whatever order. A file
    that ends in `.pte` is ExecuTorch's, one in `.tflite` LiteRT's.

    Everything else is as in `client_app`; plain SGD (with mu and clip_norm as the server says) is what the file does.
    """

    @cache
    def ready() -> ModelFile:
        from fedbalancer.training.open_model import open_model

        return open_model(file, threads)

    return model_app(lambda samples: ready(), data, test=test, method=method, mods=mods, hold=hold)
