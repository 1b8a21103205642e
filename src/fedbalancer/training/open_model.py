"""Opens model files for any runtime, and trains the clients of a task with one."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from fedbalancer.core.errors import BadData
from fedbalancer.core.samples import IGNORED
from fedbalancer.core.task import BaseTask, Samples, is_plain
from fedbalancer.core.types import ClientWork, FloatArray, Layout, TrainResult, Weights
from fedbalancer.training.model_file import ModelFile
from fedbalancer.training.tensors import SampleCache

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
