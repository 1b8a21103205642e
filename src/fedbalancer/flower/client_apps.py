"""Ready client apps: `client_app` for torch, `device_app` for exported model files."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedbalancer.client.live import HeldClock, WallClock
from fedbalancer.client.training import start_model
from fedbalancer.core.interfaces import Draw, Training
from fedbalancer.core.metrics import Metrics
from fedbalancer.core.optimizers import CUSTOM, optimizer_text
from fedbalancer.core.samples import columns_of, take
from fedbalancer.core.task import Samples, check_samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, Part, TrainResult, Weights
from fedbalancer.flower.client import LocalRound, balanced
from fedbalancer.flower.compat import ClientApp, Context, Message, MetricRecord, RecordDict, reply_to
from fedbalancer.flower.introduction import ClientTags, introduce
from fedbalancer.flower.messages import ARRAYS, METRICS, reorder_arrays, round_of
from fedbalancer.flower.model_arrays import ModelLayout, reorder
from fedbalancer.flower.mods import Mod, check_mods, skip_without_arrays
from fedbalancer.training.tensors import prepare_samples

if TYPE_CHECKING:
    from fedbalancer.training.model_file import ModelFile
    from fedbalancer.training.optimizers import MakeOptimizer
    from fedbalancer.training.trainer import TorchModel

EXAMPLE = 10
"""Samples that the layers of a torch model are tested on."""

Data = Callable[[Context], Any]
"""(context) -> (features, labels), one row per sample, or a data set: what `Task` accepts as a client's samples."""
Decline = Callable[[Context], str]
"""(context) -> why the client does not take part in a round; "" if it does."""
Hold = Callable[[Context, int], Draw | None]
"""(context, round) -> the seconds of an emulated device, or None to use this machine's own speed."""


def client_app(
    model: Callable[[], Any],
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    loss: str | Callable[[Any, Any], Any] = "cross_entropy",
    metric: Metrics = "accuracy",
    optimizer: MakeOptimizer | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    backend: str = "fast",
    device: str = "cpu",
    threads: int | None = None,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
    tags: ClientTags | None = None,
    decline: Decline | None = None,
) -> ClientApp:
    """Build a `ClientApp` that trains a torch model.

    Epochs, batch size, learning rate, optimizer and method come from the server with every order. The client stops
    itself at the deadline.

    Example:
        >>> app = client_app(model=make_net, data=lambda context: (features, labels))  # doctest: +SKIP

    Args:
        model: Makes the module.
        data: Returns the client's features and labels.
        test: Returns the samples for evaluations. Default: the training data.
        method: The server's `Method`, if it has custom policies.
        loss: Name of a loss, or a function of outputs and labels.
        metric: One or several metrics, as in `Task`.
        optimizer: A class of `torch.optim`, a partial of one, or a function (parameters, lr=...) that returns an
            optimizer. It replaces the server's. Default: the server's. The learning rate is always the server's.
        forward: Function of (model, features) that returns the outputs, as in `Task`.
        collate_fn: Converts items of a data set, as in `Task`.
        backend: `fast` or `plain`, as in `fedbalancer run`.
        device: Torch device.
        threads: Threads of torch. Default: torch's own.
        mods: Flower's mods around training, such as `LocalDpMod`. The model is then sent under its names.
        hold: Emulates a slower device: batches, download and upload take the seconds that it returns.
        tags: Returns the current conditions of the device as tags, as in `introduce`.
        decline: Returns why the client does not take part in a round; "" if it does.

    Returns:
        The app.

    Raises:
        BadSetting: A mod or the optimizer does not work here.
    """
    example: list[Any] = []
    if optimizer is not None:
        optimizer_text(optimizer)  # refuses what does not work here

    @cache
    def build() -> TorchModel:
        """Build the model at first use: an app is imported more often than it trains."""
        from fedbalancer.training.trainer import TorchModel

        built = TorchModel(
            model, loss=loss, metric=metric, backend=backend if optimizer is None else "plain", device=device,
            optimizer=optimizer, forward=forward, example=lambda: example[0],
        )  # fmt: skip
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        _ = built.plan  # test the layers now, so that no round pays for it
        return built

    def build_with_example(samples: Samples) -> TorchModel:
        example[:] = [take(samples[0], slice(EXAMPLE))]
        return build()

    return model_app(
        build_with_example, data, test=test, method=method, mods=mods, hold=hold, collate_fn=collate_fn,
        own_optimizer=optimizer is not None, tags=tags, decline=decline,
    )  # fmt: skip


def device_app(
    file: Path | str,
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    threads: int = 1,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
    tags: ClientTags | None = None,
    decline: Decline | None = None,
) -> ClientApp:
    """Build a `ClientApp` that trains a model file of `fedbalancer export`, without torch.

    LiteRT runs files that end in `.tflite`, ExecuTorch those that end in `.pte`. The server's model must have the same
    names and shapes as the exported one. Training is plain SGD, with mu and clip_norm from the server; orders with
    another optimizer, accumulated gradients or another number type are refused.

    Example:
        >>> app = device_app("model.tflite", data=lambda context: (features, labels))  # doctest: +SKIP

    Args:
        file: The model file.
        data: Returns the client's features and labels.
        test: Returns the samples for evaluations. Default: the training data.
        method: The server's `Method`, if it has custom policies.
        threads: Threads of the runtime.
        mods: Flower's mods around training.
        hold: Emulates a slower device.
        tags: Returns the current conditions of the device as tags, as in `introduce`.
        decline: Returns why the client does not take part in a round; "" if it does.

    Returns:
        The app.

    Raises:
        BadSetting: A mod does not work here.
    """

    @cache
    def load() -> ModelFile:
        from fedbalancer.training.model_file import open_model

        return open_model(file, threads)

    def load_for(samples: Samples) -> ModelFile:
        from fedbalancer.training.model_file import check_file_samples

        check_file_samples(samples, "the client's data")
        return load()

    return model_app(load_for, data, test=test, method=method, mods=mods, hold=hold, tags=tags, decline=decline)


class LocalModel(Protocol):
    """A model on this machine: pure functions of weights and samples."""

    @property
    def layout(self) -> Layout: ...
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> AbstractContextManager[Training]: ...
    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray: ...
    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation: ...
    def time_batches(self, samples: Samples, batch_size: int, count: int) -> list[float]: ...


def model_app(
    build: Callable[[Samples], LocalModel],
    data: Data,
    *,
    test: Data | None = None,
    method: Any = None,
    mods: Sequence[Mod] = (),
    hold: Hold | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    own_optimizer: bool = False,
    tags: ClientTags | None = None,
    decline: Decline | None = None,
) -> ClientApp:
    """Build a `ClientApp` that trains any `LocalModel`.

    Args:
        build: Returns the model for the client's samples; called for every message.
        data: Returns the client's features and labels.
        test: Returns the samples for evaluations.
        method: The server's `Method`, if it has custom policies.
        mods: Flower's mods around training.
        hold: Emulates a slower device.
        collate_fn: Converts items of a data set.
        own_optimizer: Whether the model's own optimizer replaces the server's.
        tags: Returns the current conditions of the device.
        decline: Returns why the client does not take part in a round.
    """
    check_mods(mods)
    app = ClientApp()

    def load_samples(source: Data, context: Context) -> Samples:
        return prepare_samples(check_samples(source(context), "the client's data", None, collate_fn))

    def samples_and_model(context: Context) -> tuple[Samples, LocalModel]:
        samples = load_samples(data, context)
        return samples, build(samples)

    def size(context: Context) -> int:
        return len(samples_and_model(context)[0][1])

    def batch_s(context: Context, batch_size: int, count: int) -> Sequence[float]:
        draw = hold(context, 0) if hold is not None else None
        if draw is not None:
            return [draw.batch_s] * count
        samples, model = samples_and_model(context)
        return model.time_batches(samples, batch_size, count)

    fingerprint = lambda context: _fingerprint(load_samples(data, context))  # noqa: E731
    introduce(app, size, batch_s=batch_s, fingerprint=fingerprint, tags=tags)

    @app.train(mods=[skip_without_arrays(mod) for mod in mods])
    def train(message: Message, context: Context) -> Message:
        conditions = None if tags is None else tags(context)
        if decline is not None and (reason := decline(context)):
            return balanced(message, context, method=method, labels=lambda: [], tags=conditions).decline(reason)
        samples, model = samples_and_model(context)  # before the clock starts: loading counts as transport
        draw = None if hold is None else hold(context, round_of(message))
        clock = WallClock() if draw is None else HeldClock(draw.batch_s)
        if draw is not None:
            time.sleep(draw.download_s)
        work = balanced(
            message, context, size=len(samples[1]), fingerprint=_fingerprint(samples), method=method, clock=clock,
            labels=lambda: samples[1], tags=conditions,
        )  # fmt: skip
        reply = work.report(_train(work, model, samples, own_optimizer), as_model=bool(mods))
        if draw is not None:
            time.sleep(draw.upload_s)
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        started = time.monotonic()
        (_, model), arrays = samples_and_model(context), message.content.array_records[ARRAYS]
        samples = load_samples(test if test is not None else data, context)
        layout = ModelLayout.of(arrays)
        result = model.evaluate(reorder(layout.flat(arrays), layout.layout, model.layout), samples)
        values = {"accuracy": result.accuracy, "loss": result.loss, **result.metrics}
        finite = {name: value for name, value in values.items() if math.isfinite(value) or name == "loss"}
        metrics = MetricRecord({"num-examples": result.samples, **finite})
        return reply_to(message, RecordDict({METRICS: metrics}), time.monotonic() - started)

    return app


def _train(work: LocalRound, model: LocalModel, samples: Samples, own_optimizer: bool) -> TrainResult | None:
    """Train as ordered; returns the part that counts, in the order of the model that was sent."""
    sent, own = work.layout.layout, model.layout
    weights = reorder(work.weights(), sent, own)
    work.select(forward=lambda: model.losses(_start_model(work, weights, own), samples, work.client))
    todo = work.client_work()
    todo = replace(todo, arrays=reorder_arrays(todo.arrays, sent, own), part=_reorder_part(work.live.part, sent, own))
    if own_optimizer:
        todo = replace(todo, training=replace(todo.training, optimizer=CUSTOM))
    with model.training(weights, samples, todo) as training:
        trained = work.live.train(training)
    if trained is None:
        return None
    arrays = reorder_arrays(trained.arrays, own, sent)
    return replace(trained, update=reorder(trained.update, own, sent), arrays=arrays)


def _start_model(work: LocalRound, weights: Weights, own: Layout) -> Weights:
    """Return the model that the client starts from, with its local layers if the method has them."""
    part = _reorder_part(work.live.part, work.layout.layout, own)
    return start_model(weights, part, work.live.memory.state)


def _reorder_part(part: Part | None, order: Layout, wanted: Layout) -> Part | None:
    if part is None:
        return None
    return replace(part, mask=reorder(part.mask.astype(np.float32), order, wanted).astype(bool))


def _fingerprint(samples: Samples) -> str:
    """Return a hash of the labels and of some rows of the features."""
    features, labels = samples
    digest = hashlib.blake2b(np.ascontiguousarray(labels).tobytes(), digest_size=16)
    for column in columns_of(features).values():
        digest.update(np.ascontiguousarray(column[:: max(len(column) // 64, 1)]).tobytes())
    return digest.hexdigest()
