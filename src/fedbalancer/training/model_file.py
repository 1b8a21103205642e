"""Training and evaluation of a model file that `fedbalancer export` wrote, for any runtime."""

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
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, TrainResult, Weights
from fedbalancer.training.sgd import RecordedTraining, check_finite

FORMAT = 1
"""Version of the signatures and of the metadata `about`."""

NO_CLIP = 3e38
"""A norm that no gradient reaches."""


class ModelFile(ABC):
    """A model file, as pure functions of weights and samples.

    Samples must be as `prepare_samples` returns them. Every call first loads its weights.

    Args:
        about: The file's metadata, as JSON.
        path: The file, for error messages.

    Raises:
        BadData: If the file has another format.
    """

    def __init__(self, about: bytes, path: Path | str) -> None:
        self.about = _parse_about(about, path)
        self.layout = Layout((name, tuple(shape)) for name, shape in self.about["layout"])
        self._classes = bool(self.about["accuracy"])
        self._piece = int(self.about["forward_batch"])

    @contextmanager
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> Iterator[FileTraining]:
        """Open a training that runs step by step.

        A step is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), where f is the mean loss of the batch. The
        recorded losses are those just before a sample's first step.

        Args:
            weights: The global model.
            samples: The client's samples.
            work: The client's work.

        Raises:
            BadSetting: If the work has options that the file does not support.
        """
        if not work.training.is_plain:
            raise BadSetting(
                f"a model file trains with plain SGD in float32, one step per batch, not with {work.training}; train "
                "with torch, or change the settings of the run"
            )
        if work.train is not None or work.part is not None:
            policy = "part" if work.train is None else type(work.train).__name__
            raise BadSetting(f"model files train plainly: {policy} of the method needs torch (client_app)")
        self.put(weights)
        yield FileTraining(self, weights, samples, work)

    def train(self, weights: Weights, samples: Samples, work: ClientWork) -> TrainResult:
        """Run all `work.batches` steps of a training.

        Args:
            weights: The global model.
            samples: The client's samples.
            work: The client's work.

        Raises:
            TrainingDiverged: If a loss or the update is not finite.
        """
        with self.training(weights, samples, work) as training:
            for _, rows in batches(work):
                training.step(rows)
            return training.result()

    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray:
        """Return the loss of every sample, in evaluation mode.

        Args:
            weights: The model.
            samples: The client's samples.
            client: The client's id, for error messages.
        """
        self.put(weights)
        losses = np.concatenate([piece[0] for piece in self._forward_pieces(samples)])
        check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation:
        """Return accuracy and mean loss; the accuracy is NaN if the labels are not classes."""
        self.put(weights)
        loss, right = 0.0, 0.0
        for losses, outputs, labels in self._forward_pieces(samples):
            loss += float(losses.sum())
            right += float((outputs.argmax(axis=1) == labels).sum()) if self._classes else np.nan
        return Evaluation(right / len(samples[1]), loss / len(samples[1]), len(samples[1]))

    def time_batches(self, samples: Samples, batch_size: int, count: int) -> list[float]:
        """Measure the seconds of `count` training batches, after one to warm up."""
        size, seconds = len(samples[1]), []
        weights = np.zeros(self.layout.parameters, dtype=np.float32)
        work = ClientWork("timing", np.arange(size), count + 1, batch_size, 0.0, 0.0, None, 0)
        with self.training(weights, samples, work) as training:
            for number in range(count + 1):
                begin_s = time.monotonic()
                training.step(np.arange(number * batch_size, (number + 1) * batch_size) % size)
                seconds.append(max(time.monotonic() - begin_s, 1e-6))
        return seconds[1:]

    def _forward_pieces(self, samples: Samples) -> Iterator[tuple[FloatArray, NDArray[np.float32], NDArray[Any]]]:
        """Yield losses, outputs and labels, piece by piece."""
        features, labels = samples
        for start in range(0, len(labels), self._piece):
            x, y = (part[start : start + self._piece] for part in (features, labels))
            losses, outputs = self.forward(x, y)
            yield losses.astype(np.float64), outputs, y

    # A runtime implements the following methods.

    @abstractmethod
    def put(self, weights: Weights) -> None:
        """Load weights, from which training starts."""

    @abstractmethod
    def get(self) -> Weights:
        """Return the current weights."""

    @abstractmethod
    def step(self, features: NDArray[Any], labels: NDArray[Any], work: ClientWork) -> FloatArray:
        """Train one batch; return its per-sample losses before the step."""

    @abstractmethod
    def forward(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return losses and outputs in evaluation mode."""

    @abstractmethod
    def infer(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return the outputs of the model."""


class FileTraining(RecordedTraining):
    """A training in progress.

    Args:
        model: The model file.
        weights: The global model.
        samples: The client's samples.
        work: The client's work.
    """

    def __init__(self, model: ModelFile, weights: Weights, samples: Samples, work: ClientWork) -> None:
        def update() -> Weights:
            difference: Weights = model.get() - weights
            return difference

        super().__init__(len(samples[1]), work, update, update)
        self._model, self._samples = model, samples

    def step(self, rows: IndexArray) -> None:
        """Train one batch of these samples."""
        features, labels = self._samples
        losses = self._model.step(features[rows], labels[rows], self._work)
        self.record(rows, lambda: losses)


def step_arguments(work: ClientWork) -> dict[str, float]:
    """Return the arguments of a step besides weights and samples."""
    clip_norm = NO_CLIP if work.clip_norm is None else work.clip_norm
    return {"learning_rate": work.learning_rate, "mu": work.mu, "clip_norm": clip_norm}


def check_exists(path: Path, runtime: str) -> None:
    """Raise `BadData` if there is no such file."""
    if not path.is_file():
        raise BadData(f"there is no model file {path}; make one: fedbalancer export TASK --runtime {runtime} -o {path}")


def check_signatures(path: Path, known: Sequence[str] | set[str], wanted: Sequence[str]) -> None:
    """Raise `BadData` if a file lacks a signature that training needs.

    Args:
        path: The file.
        known: Its signatures.
        wanted: The needed signatures.
    """
    if missing := [name for name in wanted if name not in known]:
        raise BadData(f"{path} cannot be trained: it has no signature {missing[0]!r}; make it with fedbalancer export")


def _parse_about(text: bytes, path: Path | str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(text)
    if about.get("format") != FORMAT:
        raise BadData(f"{path} has format {about.get('format')}; this version reads {FORMAT}: export it again")
    return about
