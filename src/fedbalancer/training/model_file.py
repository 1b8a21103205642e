"""A model in a file of `fedbalancer export`: what its training and looking are, whatever runtime runs it."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.work import batches
from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, TrainResult, Weights
from fedbalancer.training.steps import NotedTraining, check_finite

FORMAT = 1
"""Of the signatures and of what `about` tells."""

NO_CLIP = 3e38
"""A norm that no gradient has."""


class ModelFile(ABC):
    """A model file, trained, looked through and evaluated: pure functions of weights and samples, as `stored` gives
    them. Every call first puts the given weights in."""

    def __init__(self, about: bytes, path: Path | str) -> None:
        self.about = _about(about, path)
        self.layout = Layout((name, tuple(shape)) for name, shape in self.about["layout"])
        self._classes = bool(self.about["accuracy"])
        self._piece = int(self.about["forward_batch"])

    @contextmanager
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> Iterator[FileTraining]:
        """A training of these samples from `weights`, step by step.

        A step is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), f the mean loss of the mini-batch. The losses are
        those from just before a sample's first step.
        """
        self.put(weights)
        yield FileTraining(self, weights, samples, work)

    def train(self, weights: Weights, samples: Samples, work: ClientWork) -> TrainResult:
        """All `work.batches` steps of a training."""
        with self.training(weights, samples, work) as training:
            for _, rows in batches(work):
                training.step(rows)
            return training.result()

    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray:
        """Loss of every sample, in evaluation mode; `client` is whose they are."""
        self.put(weights)
        losses = np.concatenate([found[0] for found in self._looked(samples)])
        check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation:
        """Accuracy and mean loss; without classes the accuracy is not a number."""
        self.put(weights)
        loss, right = 0.0, 0.0
        for losses, outputs, labels in self._looked(samples):
            loss += float(losses.sum())
            right += float((outputs.argmax(axis=1) == labels).sum()) if self._classes else np.nan
        return Evaluation(right / len(samples[1]), loss / len(samples[1]), len(samples[1]))

    def timed(self, samples: Samples, batch_size: int, count: int) -> list[float]:
        """Seconds of `count` training batches after one to warm up."""
        size, seconds = len(samples[1]), []
        weights = np.zeros(self.layout.parameters, dtype=np.float32)
        work = ClientWork("timing", np.arange(size), count + 1, batch_size, 0.0, 0.0, None, 0)
        with self.training(weights, samples, work) as training:
            for number in range(count + 1):
                began_s = time.monotonic()
                training.step(np.arange(number * batch_size, (number + 1) * batch_size) % size)
                seconds.append(max(time.monotonic() - began_s, 1e-6))
        return seconds[1:]

    def _looked(self, samples: Samples) -> Iterator[tuple[FloatArray, NDArray[np.float32], NDArray[Any]]]:
        """Losses, outputs and labels, piece by piece."""
        features, labels = samples
        for start in range(0, len(labels), self._piece):
            x, y = (part[start : start + self._piece] for part in (features, labels))
            losses, outputs = self.look(x, y)
            yield losses.astype(np.float64), outputs, y

    # What a runtime does

    @abstractmethod
    def put(self, weights: Weights) -> None:
        """Begin with these weights: what is trained moves away from them."""

    @abstractmethod
    def get(self) -> Weights:
        """The weights as they are now."""

    @abstractmethod
    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        """One step of SGD; the per-sample losses from before it."""

    @abstractmethod
    def look(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Losses and outputs in evaluation mode."""

    @abstractmethod
    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """The outputs of the model."""


class FileTraining(NotedTraining):
    """A training while it goes on."""

    def __init__(self, model: ModelFile, weights: Weights, samples: Samples, work: ClientWork) -> None:
        def update() -> Weights:
            moved: Weights = model.get() - weights
            return moved

        super().__init__(len(samples[1]), work, update, update)
        self._model, self._samples = model, samples

    def step(self, rows: IndexArray) -> None:
        """Train the batch of these samples."""
        features, labels = self._samples
        losses = self._model.step(features[rows], labels[rows], self._work)
        self.note(rows, lambda: losses)


def numbers_of(work: ClientWork) -> dict[str, float]:
    """What a step takes beside weights and samples."""
    clip_norm = NO_CLIP if work.clip_norm is None else work.clip_norm
    return {"learning_rate": work.learning_rate, "mu": work.mu, "clip_norm": clip_norm}


def check_there(path: Path, runtime: str) -> None:
    """Refuse a file that is not there."""
    if not path.is_file():
        raise BadData(f"there is no model file {path}; make one: fedbalancer export TASK --runtime {runtime} -o {path}")


def check_signatures(path: Path, known: Sequence[str] | set[str], wanted: Sequence[str]) -> None:
    """Refuse a model that was not made to be trained."""
    if missing := [name for name in wanted if name not in known]:
        raise BadData(f"{path} cannot be trained: it has no signature {missing[0]!r}; make it with fedbalancer export")


def _about(told: bytes, path: Path | str) -> dict[str, Any]:
    """What a file tells of itself."""
    about: dict[str, Any] = json.loads(told)
    if about.get("format") != FORMAT:
        raise BadData(f"{path} is of format {about.get('format')}; this version reads {FORMAT}: export it again")
    return about
