"""Local training and evaluation with torch: plain mini-batch SGD, one client at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.batches import epochs
from fedbalancer.client.flat import FlatModule, build
from fedbalancer.client.model_check import check_client, check_model
from fedbalancer.client.sgd import PlainSteps, Steps
from fedbalancer.client.tensors import Shelf, batch_of, hits_of, per_sample_loss, stored
from fedbalancer.client.torch_device import checked_device
from fedbalancer.errors import MissingData, TrainingDiverged, UnknownName
from fedbalancer.randomness import integer_seed
from fedbalancer.task import Samples, Task
from fedbalancer.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, Trained, Weights

if TYPE_CHECKING:
    import torch

    from fedbalancer.client.fast.plan import FastPlan

ENGINES = ("fast", "plain")
FORWARD_BATCH = 256
"""Samples per forward pass where no gradient is needed: a piece of an evaluation."""

Piece = tuple[float, float, float, int]
"""Of a part of the test data: the sum of the losses, how many are right, of how many that count, samples."""


class TorchTrainer:
    """A `Trainer` of any task whose model is a `torch.nn.Module`: pure functions of their arguments.

    One module is reused for all calls; every call first writes the given weights into it. The engine `plain` is the
    reference, by torch's own operations; `fast` gives the same within float error. One of them repeats itself to the
    byte on the same machine; on a `device` other than the CPU that is not promised.
    """

    def __init__(self, task: Task, engine: str = "fast", device: str = "cpu") -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData("training needs torch; install it with: pip install 'fedbalancer[torch]'") from error
        if engine not in ENGINES:
            raise UnknownName("engine", engine, ENGINES)
        self._task = task
        self._device = checked_device(device)
        self._loss = per_sample_loss(task.loss)
        self._hits = hits_of(task.metric)
        self._flat = FlatModule(task.model, device)
        on_cpu = self._flat.module if device == "cpu" else build(task.model)
        self._classes = check_model(task, on_cpu, self._loss)
        self._engine = engine if device == "cpu" else "plain"
        self._shelf = Shelf(self._client)
        self._test = stored(task.test)

    @cached_property
    def plan(self) -> FastPlan | None:
        """How the layers run: made when it is first needed, by trying the first client's samples; None if plain."""
        if self._engine == "plain":
            return None
        from fedbalancer.client.fast.plan import fast_module

        features, _ = self._shelf[next(iter(self._task.clients))]
        return fast_module(self._flat.module, batch_of(features, slice(self._task.batch_size)))

    @cached_property
    def _steps(self) -> Steps:
        if self.plan is None:
            return PlainSteps(self._flat, self._loss)
        from fedbalancer.client.fast.steps import FastSteps

        return FastSteps(self._flat, self._loss, self.plan)

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
        come from the forward passes that training makes anyway: of each sample the first, just before its step.
        """
        import torch

        features, labels = self._shelf[work.client]
        unseen = np.zeros(len(labels), dtype=bool)
        unseen[work.indices] = True
        seen: list[IndexArray] = []
        losses: list[FloatArray] = []
        with self._generator(integer_seed(work.seed, "torch", 0, work.client)):
            self._steps.begin(weights, work)
            for rows in epochs(work):
                split = (torch.split(self._batch(part, rows), work.batch_size) for part in (features, labels))
                made = [self._steps.step(*batch) for batch in zip(*split, strict=True)]
                fresh = unseen[rows]
                if fresh.any():
                    seen.append(rows[fresh])
                    losses.append(_numbers(made)[fresh])
                    unseen[rows] = False
            update = self._steps.finish()
        return _result(work, update, seen, losses)

    def losses(self, weights: Weights, client: str) -> FloatArray:
        """Loss of every sample of the client, in evaluation mode."""
        samples = self._shelf[client]
        self._steps.load(weights)
        made = [self._forward(samples, start)[2] for start in range(0, len(samples[1]), FORWARD_BATCH)]
        losses = _numbers(made)
        _check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights) -> Evaluation:
        """Accuracy and mean loss on the test data. The accuracy of a task without classes is not a number."""
        return self.combine(self.evaluate_pieces(weights, range(self.evaluation_pieces())))

    def evaluation_pieces(self) -> int:
        """In how many pieces the test data can be evaluated."""
        return -(-len(self._test[1]) // FORWARD_BATCH)

    def evaluate_pieces(self, weights: Weights, pieces: Sequence[int]) -> list[Piece]:
        """The given pieces of an evaluation, each the same whoever evaluates it and with whatever others."""
        self._steps.load(weights)
        return [self._piece(number * FORWARD_BATCH) for number in pieces]

    @staticmethod
    def combine(pieces: Sequence[Piece]) -> Evaluation:
        """The evaluation from all its pieces, given in their order."""
        loss, right, counted, samples = (sum(column) for column in zip(*pieces, strict=True))
        return Evaluation(right / counted if counted else math.nan, loss / samples, int(samples))

    def _piece(self, start: int) -> Piece:
        outputs, labels, losses = self._forward(self._test, start)
        right, counted = self._hits(outputs, labels)
        return float(losses.double().sum()), right, counted, len(labels)

    def _forward(self, samples: Samples, start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs, labels and per-sample losses of a piece that begins at `start`, on the CPU."""
        import torch

        features, labels = (self._batch(part, slice(start, start + FORWARD_BATCH)) for part in samples)
        with torch.no_grad():
            outputs = self._steps.apply(features)
            losses = self._loss(outputs, labels)
        return outputs.cpu(), labels.cpu(), losses.cpu()

    def _client(self, client: str) -> Samples:
        return check_client(self._task.clients[client], client, self._test, self._classes)

    def _batch(self, array: NDArray[Any], rows: IndexArray | slice) -> torch.Tensor:
        tensor = batch_of(array, rows)
        return tensor if self._device == "cpu" else tensor.to(self._device)

    @contextmanager
    def _generator(self, seed: int) -> Iterator[None]:
        """A context in which dropout and the like, which draw from torch's own generator, start from a seed."""
        import torch

        generator = torch.default_generator
        before = generator.get_state()
        (generator.manual_seed if self._device == "cpu" else torch.manual_seed)(seed)
        try:
            yield
        finally:
            generator.set_state(before)


def _numbers(losses: list[torch.Tensor]) -> FloatArray:
    import torch

    values: FloatArray = torch.cat(losses).cpu().numpy().astype(np.float64)
    return values


def _result(work: ClientWork, update: Weights, seen: list[IndexArray], losses: list[FloatArray]) -> Trained:
    rows = np.concatenate([np.empty(0, dtype=np.int64), *seen])
    values = np.concatenate([np.empty(0), *losses])
    order = np.argsort(rows, kind="stable")
    _check_finite(work.client, rows, values, f"; {_advice(work)}")
    with np.errstate(all="ignore"):
        finite = math.isfinite(update.sum()) or np.isfinite(update).all()  # the sum is the faster one
    if not finite:
        raise TrainingDiverged(f"client {work.client!r}: the update is not finite; {_advice(work)}")
    return Trained(work.client, update, rows[order], values[order])


def _check_finite(client: str, rows: IndexArray, losses: FloatArray, advice: str = "") -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise TrainingDiverged(f"client {client!r}: the loss of sample {rows[bad[0]]} is {losses[bad[0]]}{advice}")


def _advice(work: ClientWork) -> str:
    return f"lower the learning rate (now {work.learning_rate:g}) or the clip_norm (now {work.clip_norm})"
