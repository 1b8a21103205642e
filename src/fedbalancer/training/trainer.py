"""The torch model of a task as its trainer: it finds every client's samples by the client's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbalancer.core.task import BaseTask, Samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, Layout, TrainResult, Weights
from fedbalancer.training.flat import build
from fedbalancer.training.model_check import check_client, check_model
from fedbalancer.training.tensors import Shelf, stored
from fedbalancer.training.torch_model import BACKENDS, Piece, TorchModel, combined, pieces_of

if TYPE_CHECKING:
    from fedbalancer.training.fast.plan import FastPlan

__all__ = ["BACKENDS", "TorchTrainer"]


class TorchTrainer:
    """A `Trainer` of any task whose model is a `torch.nn.Module`: pure functions of their arguments."""

    def __init__(self, task: BaseTask, backend: str = "fast", device: str = "cpu") -> None:
        self._task = task
        self.model = TorchModel(
            task.model, loss=task.loss, metric=task.metric, backend=backend, device=device,
            example=lambda: self._shelf[next(iter(task.clients))][0][: task.batch_size],
        )  # fmt: skip
        on_cpu = self.model.flat.module if device == "cpu" else build(task.model)
        self._classes = check_model(task, on_cpu, self.model.loss, self.model.hits)
        self._shelf = Shelf(self._client)
        self._test = stored(task.test)

    @property
    def plan(self) -> FastPlan | None:
        """How the layers run."""
        return self.model.plan

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, then of the floating-point buffers."""
        return self.model.layout

    def prepare(self) -> None:
        """Do now what the first training would wait for: to try the layers."""
        _ = self.plan

    def initial_weights(self, seed: int) -> Weights:
        """What the model's factory makes under this seed."""
        return self.model.initial_weights(seed)

    def train(self, weights: Weights, work: ClientWork) -> TrainResult:
        """`work.batches` steps of SGD from `weights`."""
        return self.model.train(weights, self._shelf[work.client], work)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, in evaluation mode."""
        return self.model.losses(weights, self._shelf[client], client)

    def evaluate(self, weights: Weights) -> Evaluation:
        """Accuracy and mean loss on the test data. The accuracy of a task without classes is not a number."""
        return self.model.evaluate(weights, self._test)

    def evaluate_client(self, weights: Weights, client: str) -> Evaluation:
        """Accuracy and mean loss on the client's own samples."""
        return self.model.evaluate(weights, self._shelf[client])

    def evaluation_pieces(self) -> int:
        """In how many pieces the test data can be evaluated."""
        return pieces_of(self._test)

    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[Piece]:
        """The given pieces of an evaluation, each the same whoever evaluates it and with whatever others."""
        return self.model.evaluate_pieces(weights, self._test, pieces)

    combine = staticmethod(combined)

    def _client(self, client: str) -> Samples:
        return check_client(self._task.clients[client], client, self._test, self._classes)
