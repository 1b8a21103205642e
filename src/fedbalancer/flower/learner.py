"""The torch model of a client app: trained until it is done or out of time, looked at, timed and evaluated."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedbalancer.client.flat import FlatModule
from fedbalancer.client.sgd import PlainSteps
from fedbalancer.client.tensors import batch_of, hits_of, per_sample_loss, stored
from fedbalancer.errors import BadData, MissingData, TrainingDiverged
from fedbalancer.flower.client import Work
from fedbalancer.flower.compat import ArrayRecord, Message
from fedbalancer.flower.layout import ModelLayout
from fedbalancer.server.expected import FORWARD_PASS_EPOCHS
from fedbalancer.task import Samples
from fedbalancer.types import ClientWork, FloatArray, IndexArray, Weights

FORWARD_BATCH = 256


class Learner:
    """The model of an app; made when it is first needed, because an app is imported more often than it trains."""

    def __init__(self, model: Any, loss: Any, metric: Any, device: str, threads: int | None) -> None:
        self._model, self._loss, self._metric = model, loss, metric
        self._device, self._threads = device, threads
        self._made: tuple[FlatModule, PlainSteps] | None = None

    def prepare(self) -> None:
        """Load torch and make the model."""
        self._parts()

    def train(self, work: Work, samples: Samples, held_batch_s: float | None) -> Message:
        """One round: select, train until done or out of time, report the state that the method's policy counts."""
        flat, steps = self._parts()
        layout, weights = work.layout, self._weights(work.arrays, work.layout)
        features, labels = stored(samples)
        looking_s = (held_batch_s or 0.0) * FORWARD_PASS_EPOCHS * -(-len(labels) // work.order.batch_size)
        work.select(forward=lambda: self._losses(weights, (features, labels), looking_s))
        losses = np.full(len(labels), np.nan)
        steps.begin(weights, work.client_work())
        kept, counted = weights, 0
        for rows in work.batches():
            began = time.monotonic()
            made = steps.step(self._batch(features, rows), self._batch(labels, rows)).cpu().numpy()
            fresh = np.isnan(losses[rows])
            losses[rows[fresh]] = made[fresh]
            _held(began, held_batch_s or 0.0)
            if work.pace.counted(work.done + 1) == work.done + 1:
                kept, counted = flat.read(), work.done + 1
        if not np.isfinite(kept).all():
            raise TrainingDiverged(f"client {work.client!r}: the weights are not finite; lower the learning rate")
        if not counted:
            return work.reply()
        return work.reply(layout.record(self._to_record(kept, layout)), losses=losses)

    def evaluate(self, arrays: ArrayRecord, samples: Samples) -> tuple[float, float]:
        """Accuracy and mean loss of a model on samples."""
        import torch

        _, steps = self._parts()
        features, labels = stored(samples)
        steps.load(self._weights(arrays, ModelLayout.of(arrays)))
        right = counted = total = 0.0
        hits, loss = hits_of(self._metric), per_sample_loss(self._loss)
        for start in range(0, len(labels), FORWARD_BATCH):
            piece = slice(start, start + FORWARD_BATCH)
            wanted = self._batch(labels, piece)
            with torch.no_grad():
                outputs = steps.apply(self._batch(features, piece))
                total += float(loss(outputs, wanted).double().sum())
            found, of = hits(outputs.cpu(), wanted.cpu())
            right, counted = right + found, counted + of
        return right / counted if counted else float("nan"), total / len(labels)

    def timed(self, samples: Samples, batch_size: int, count: int) -> list[float]:
        """Seconds of `count` training batches after one to warm up; the model is reset by whatever trains next."""
        flat, steps = self._parts()
        features, labels = stored(samples)
        weights = flat.read()
        steps.begin(weights, ClientWork("timing", np.arange(len(labels)), 1, batch_size, 1e-6, 0.0, None, 0))
        seconds = []
        for number in range(count + 1):
            rows = (np.arange(batch_size) + number * batch_size) % len(labels)
            began = time.monotonic()
            steps.step(self._batch(features, rows), self._batch(labels, rows))
            seconds.append(max(time.monotonic() - began, 1e-6))
        steps.load(weights)
        return seconds[1:]

    def _losses(self, weights: Weights, samples: Samples, looking_s: float) -> FloatArray:
        import torch

        began = time.monotonic()
        _, steps = self._parts()
        steps.load(weights)
        loss, made = per_sample_loss(self._loss), []
        for start in range(0, len(samples[1]), FORWARD_BATCH):
            piece = slice(start, start + FORWARD_BATCH)
            with torch.no_grad():
                made.append(loss(steps.apply(self._batch(samples[0], piece)), self._batch(samples[1], piece)).cpu())
        values: FloatArray = torch.cat(made).numpy().astype(np.float64)
        _held(began, looking_s)
        return values

    def _parts(self) -> tuple[FlatModule, PlainSteps]:
        if self._made is None:
            try:
                import torch
            except ImportError as error:
                raise MissingData("client_app needs torch: pip install 'fedbalancer[torch]'") from error
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            flat = FlatModule(self._model, self._device)
            self._made = (flat, PlainSteps(flat, per_sample_loss(self._loss)))
        return self._made

    def _batch(self, array: Any, rows: IndexArray | slice) -> Any:
        tensor = batch_of(array, rows)
        return tensor if self._device == "cpu" else tensor.to(self._device)

    def _weights(self, arrays: ArrayRecord, layout: ModelLayout) -> Weights:
        """The sent model in the order of the module's own tensors, which need not be that of its state_dict."""
        flat, _ = self._parts()
        names = dict(flat.layout)
        if names != dict(layout.layout):
            strange = sorted({str(item) for item in set(names.items()) ^ set(dict(layout.layout).items())})
            raise BadData(f"the server's model differs from this client's in {', '.join(strange[:3])}")
        vector = layout.flat(arrays)
        return np.concatenate([_part(vector, layout, name) for name in names])

    def _to_record(self, vector: Weights, layout: ModelLayout) -> Weights:
        flat, _ = self._parts()
        own = ModelLayout(flat.layout, {}, {})
        return np.concatenate([_part(vector, own, name) for name, _ in layout.layout])


def _part(vector: Weights, layout: ModelLayout, name: str) -> Weights:
    start = 0
    for found, shape in layout.layout:
        length = int(np.prod(shape, dtype=np.int64))
        if found == name:
            return vector[start : start + length]
        start += length
    raise KeyError(name)


def _held(began: float, seconds: float) -> None:
    """Return not before `seconds` have passed since `began`."""
    time.sleep(max(began + seconds - time.monotonic(), 0.0))
