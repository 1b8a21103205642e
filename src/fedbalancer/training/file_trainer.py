"""A model file as the trainer of a task: it finds every client's samples by the client's name."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from fedbalancer.core.task import BaseTask
from fedbalancer.core.types import ClientWork, FloatArray, Layout, TrainResult, Weights
from fedbalancer.training.model_file import ModelFile
from fedbalancer.training.open_model import open_model
from fedbalancer.training.tensors import Shelf


class FileTrainer:
    """Trains the clients of a task by a file of `fedbalancer export`, which is opened when it is first needed: only
    then, for a process that has opened it must not fork."""

    def __init__(self, task: BaseTask, path: Path | str) -> None:
        self._path = path
        self._shelf = Shelf(lambda client: task.clients[client])

    @cached_property
    def model(self) -> ModelFile:
        return open_model(self._path)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters."""
        return self.model.layout

    def prepare(self) -> None:
        """Do now what the first training would wait for."""
        _ = self.model

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """`work.batches` steps of SGD from `weights`."""
        return self.model.train(weights, self._shelf[work.client], work)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, in evaluation mode."""
        return self.model.losses(weights, self._shelf[client], client)
