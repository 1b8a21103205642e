"""Local training with torch: plain mini-batch SGD, one client at a time.

The reference behind the `Trainer` protocol: any faster trainer has to give what this one gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.batches import batches
from fedbalancer.client.flat import FlatModule
from fedbalancer.client.model_check import check_labels, check_model, refused
from fedbalancer.client.tensors import hits_of, per_sample_loss, to_tensors
from fedbalancer.errors import BadData, MissingData, TrainingDiverged
from fedbalancer.randomness import integer_seed
from fedbalancer.tasks.task import Task
from fedbalancer.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, Trained, Weights

if TYPE_CHECKING:
    import torch

    from fedbalancer.client.tensors import Tensors

FORWARD_BATCH = 256
"""Samples per forward pass where no gradient is needed."""


class TorchTrainer:
    """A `Trainer` of any task whose model is a `torch.nn.Module`: pure functions of their arguments.

    One module is reused for all calls; every call first writes the given weights into it. The data of a client become
    tensors when they are first needed.
    """

    def __init__(self, task: Task) -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData("training needs torch; install it with: pip install 'fedbalancer[torch]'") from error
        self._task = task
        self._loss = per_sample_loss(task.loss)
        self._hits = hits_of(task.metric)
        self._flat = FlatModule(task.model)
        self._tensors: dict[str, Tensors] = {}
        self._test: Tensors | None = None
        self._classes = check_model(task, self._flat.module, self._loss)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, then of the floating-point buffers."""
        return self._flat.layout

    def initial_weights(self, seed: int) -> Weights:
        """What the model's factory makes under this seed."""
        return self._flat.initial(integer_seed(seed, "initial weights"))

    def train(self, weights: Weights, work: ClientWork) -> Trained:
        """`work.batches` steps of SGD from `weights`.

        A step is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), f the mean loss of the mini-batch. The losses
        come from the forward passes that the first epoch makes anyway, each before its step.
        """
        import torch

        seen: list[IndexArray] = []
        losses: list[NDArray[Any]] = []
        self._flat.load(weights)
        self._flat.module.train()
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from torch's own generator
            torch.manual_seed(integer_seed(work.seed, "torch", 0, work.client))
            anchors = [parameter.detach().clone() for parameter in self._flat.parameters] if work.mu else []
            for epoch, rows in batches(work):
                batch = self._step(work, rows, anchors)
                if epoch == 0:
                    seen.append(rows)
                    losses.append(batch.numpy())
        return _result(work, self._flat.read() - weights, seen, losses)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, in evaluation mode."""
        parts = [losses.numpy() for _, _, losses in self._forward(weights, self._client(client))]
        losses = np.concatenate(parts).astype(np.float64)
        _check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights) -> Evaluation:
        """Accuracy and mean loss on the test data. The accuracy of a task without classes is not a number."""
        if self._test is None:
            self._test = to_tensors(self._task.test)
        loss_sum, right, counted = 0.0, 0.0, 0.0
        for outputs, labels, losses in self._forward(weights, self._test):
            loss_sum += float(losses.double().sum())
            hits, of = self._hits(outputs, labels)
            right, counted = right + hits, counted + of
        samples = len(self._test[1])
        return Evaluation(right / counted if counted else math.nan, loss_sum / samples, samples)

    def _step(self, work: ClientWork, rows: IndexArray, anchors: list[torch.Tensor]) -> torch.Tensor:
        """One step of SGD; returns the per-sample losses from before it."""
        import torch

        features, labels = self._client(work.client)
        chosen = torch.from_numpy(rows)
        parameters = self._flat.parameters
        losses = self._loss(self._outputs(work.client, features[chosen]), labels[chosen])
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(losses.mean())
        with torch.no_grad():
            for parameter, anchor in zip(parameters, anchors, strict=bool(anchors)):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - anchor, alpha=work.mu)
            if work.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, work.clip_norm)
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-work.learning_rate)
        return losses.detach()

    def _forward(self, weights: Weights, tensors: Tensors) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Outputs, labels and per-sample losses, a large batch at a time."""
        import torch

        self._flat.load(weights)
        self._flat.module.eval()
        for features, labels in zip(*(torch.split(part, FORWARD_BATCH) for part in tensors), strict=True):
            with torch.no_grad():
                outputs = self._flat.module(features)
                losses = self._loss(outputs, labels)
            yield outputs, labels, losses

    def _client(self, client: str) -> Tensors:
        if client not in self._tensors:
            samples = self._task.clients[client]
            if self._classes is not None:
                check_labels(np.asarray(samples[1]), f"client {client!r}", self._classes)
            self._tensors[client] = to_tensors(samples)
        return self._tensors[client]

    def _outputs(self, client: str, features: torch.Tensor) -> torch.Tensor:
        try:
            outputs: torch.Tensor = self._flat.module(features)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadData(f"client {client!r}: {refused(features, error)}") from error
        return outputs


def _result(work: ClientWork, update: Weights, seen: list[IndexArray], losses: list[NDArray[Any]]) -> Trained:
    rows = np.concatenate([np.empty(0, dtype=np.int64), *seen])
    values = np.concatenate([np.empty(0), *losses])
    order = np.argsort(rows, kind="stable")
    _check_finite(work.client, rows, values, f"; {_advice(work)}")
    if not np.isfinite(update).all():
        raise TrainingDiverged(f"client {work.client!r}: the update is not finite; {_advice(work)}")
    return Trained(work.client, update, rows[order], values[order])


def _check_finite(client: str, rows: IndexArray, losses: FloatArray, advice: str = "") -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise TrainingDiverged(f"client {client!r}: the loss of sample {rows[bad[0]]} is {losses[bad[0]]}{advice}")


def _advice(work: ClientWork) -> str:
    return f"lower the learning rate (now {work.learning_rate:g}) or the clip_norm (now {work.clip_norm})"
