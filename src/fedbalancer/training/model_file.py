"""Model files that `fedbalancer export` wrote: training and evaluation with any runtime."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.work import batches
from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.samples import IGNORED
from fedbalancer.core.task import BaseTask, Samples, is_plain
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, TrainResult, Weights
from fedbalancer.training.sgd import RecordedTraining, check_finite
from fedbalancer.training.tensors import SampleCache, build_module, trained_tensors

if TYPE_CHECKING:
    import torch


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


SUFFIXES = {"litert": ".tflite", "executorch": ".pte"}
"""Suffix of each runtime's files."""

MARK = slice(4, 6), b"ET"
"""Position and value of the bytes that identify an ExecuTorch file."""


def open_model(path: Path | str, threads: int = 1) -> ModelFile:
    """Open a model file with the runtime of its suffix, else of its first bytes, else LiteRT.

    Args:
        path: The file.
        threads: Threads of the runtime.

    Raises:
        BadData: If there is no such file or it cannot be trained.
        MissingData: If the runtime is not installed.
    """
    if runtime_of(Path(path)) == "executorch":
        from fedbalancer.training.executorch import ExecutorchModel

        return ExecutorchModel(path, threads)
    from fedbalancer.training.litert import LitertModel

    return LitertModel(path, threads)


def runtime_of(path: Path) -> str:
    """Return the runtime of a file: `litert` or `executorch`."""
    by_suffix = {suffix: runtime for runtime, suffix in SUFFIXES.items()}
    if path.suffix in by_suffix:
        return by_suffix[path.suffix]
    if not path.is_file():
        return "litert"
    with path.open("rb") as file:
        return "executorch" if file.read(8)[MARK[0]] == MARK[1] else "litert"


def check_file_samples(samples: Samples, where: str) -> Samples:
    """Return samples, if a model file can train them.

    Args:
        samples: Features and labels.
        where: Whose samples these are, for the message.

    Raises:
        BadData: If they are not two arrays, or a label is ignored.
    """
    if not is_plain(samples):
        raise BadData(f"{where}: a model file takes one array of features and one of labels; other samples need torch")
    if samples[1].dtype.kind in "iu" and (samples[1] == IGNORED).any():
        raise BadData(f"{where}: a model file cannot ignore labels of {IGNORED}; leave these samples out, or use torch")
    return samples


class FileTrainer:
    """Trains the clients of a task with a model file.

    The file is opened at first use, because a process that has opened it must not fork.

    Args:
        task: The task.
        path: The model file.
    """

    def __init__(self, task: BaseTask, path: Path | str) -> None:
        self._path = path
        self._samples = SampleCache(lambda client: check_file_samples(task.samples(client), f"client {client!r}"))

    @cached_property
    def model(self) -> ModelFile:
        """The opened file."""
        return open_model(self._path)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters."""
        return self.model.layout

    def prepare(self) -> None:
        """Open the file now instead of at the first training."""
        _ = self.model

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """Run `work.batches` steps of SGD from `weights`."""
        return self.model.train(weights, self._samples[work.client], work)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Return the loss of every sample of the client, in evaluation mode."""
        return self.model.losses(weights, self._samples[client], client)


FILE = "model.safetensors"


@runtime_checkable
class HasWeights(Protocol):
    """A result that holds the weights of its final model, such as `RunResult`."""

    @property
    def weights(self) -> Weights: ...


def load_model(run: Path | str | HasWeights, model: BaseTask | Callable[[], Any]) -> torch.nn.Module:
    """Return the trained model of a run.

    A run saves only what training changes. Frozen parameters come from the task's model function, as in the run.

    Args:
        run: The result of a run, its folder, or its file `model.safetensors`.
        model: The run's task, or the function that makes its module.

    Returns:
        A new module in evaluation mode, in float32 on the CPU.

    Raises:
        BadData: If there is no such file, or it belongs to another model.

    Example:
        >>> import fedbalancer as fb
        >>> task = fb.load_task("synthetic", users=8)
        >>> fb.load_model(fb.run(task, "fedavg+1t", rounds=2), task)
        Linear(in_features=60, out_features=10, bias=True)
    """
    module = build_module(model.model if isinstance(model, BaseTask) else model)
    tensors = trained_tensors(module)
    arrays = _read(run, Layout((name, tuple(tensor.shape)) for name, tensor in tensors.items()))
    import torch

    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.tensor(arrays[name]))
    return module.eval()


def _read(run: Path | str | HasWeights, layout: Layout) -> dict[str, Any]:
    """Return the named arrays of a run, checked against the layout of the module."""
    if not isinstance(run, Path | str):
        if len(run.weights) != layout.parameters:
            raise BadData(f"the run's model has {len(run.weights)} numbers, but this model has {layout.parameters}")
        return dict(layout.split(run.weights))
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(run) / FILE if Path(run).is_dir() else Path(run)
    try:
        arrays: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path} is not a saved model: {error}") from error
    saved = {name: tuple(array.shape) for name, array in arrays.items()}
    if different := sorted(name for name in {*saved, *dict(layout)} if saved.get(name) != dict(layout).get(name)):
        raise BadData(f"{path} belongs to another model: they differ in {', '.join(map(repr, different[:3]))}")
    return arrays
