"""A torch model that is trained, looked through and evaluated, for whoever has samples: simulator, Flower, test bed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.client.work import epochs
from fedbalancer.core.errors import MissingData, UnknownName
from fedbalancer.core.randomness import integer_seed
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientWork, Evaluation, FloatArray, IndexArray, Layout, TrainResult, Weights
from fedbalancer.core.types.arrays import total
from fedbalancer.training.flat import FlatModule
from fedbalancer.training.sgd import MakeOptimizer, PlainSteps, Steps
from fedbalancer.training.steps import NotedTraining, check_finite
from fedbalancer.training.tensors import batch_of, hits_of, per_sample_loss
from fedbalancer.training.torch_device import checked_device

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.fast.plan import FastPlan

BACKENDS = ("fast", "plain")
FORWARD_BATCH = 256
"""Samples per forward pass where no gradient is needed: a piece of an evaluation."""

Piece = tuple[float, float, float, int]
"""Of a part of some samples: the sum of the losses, how many are right, of how many that count, samples."""


class TorchModel:
    """A `torch.nn.Module` with its loss and metric: pure functions of weights and samples, as `stored` gives them.

    One module is reused for all calls; every call first writes the given weights into it. The backend `plain` is the
    reference, by torch's own operations; `fast` gives the same within float error. One of them repeats itself to the
    byte on the same machine; on a `device` other than the CPU that is not promised.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        loss: str | Callable[[Any, Any], Any] = "cross_entropy",
        metric: str | Callable[[Any, Any], tuple[float, float]] = "accuracy",
        backend: str = "fast",
        device: str = "cpu",
        optimizer: MakeOptimizer | None = None,
        example: Callable[[], NDArray[Any]],
    ) -> None:
        """`example` gives the features of a few samples, on which the fast backend tries the model's layers. An
        `optimizer` in place of plain SGD is made as `optimizer(parameters, lr=...)`, and runs on the plain backend."""
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingData("training needs torch; install it with: pip install 'fedbalancer[torch]'") from error
        if backend not in BACKENDS:
            raise UnknownName("backend", backend, BACKENDS)
        self._device = checked_device(device)
        self._backend = backend if device == "cpu" and optimizer is None else "plain"
        self._optimizer = optimizer
        self._example = example
        self._given_loss, self.loss = loss, per_sample_loss(loss)
        self.hits = hits_of(metric)
        self.flat = FlatModule(make, device)

    @cached_property
    def plan(self) -> FastPlan | None:
        """How the layers run: made when it is first needed, by trying the example; None if plain."""
        if self._backend == "plain":
            return None
        from fedbalancer.training.fast.plan import fast_module

        return fast_module(self.flat.module, batch_of(self._example(), slice(None)), self._given_loss)

    @cached_property
    def _steps(self) -> Steps:
        if self.plan is None:
            return PlainSteps(self.flat, self.loss, self._optimizer)
        from fedbalancer.training.fast.steps import FastSteps

        return FastSteps(self.flat, self.loss, self.plan)

    @property
    def layout(self) -> Layout:
        """Names and shapes of the parameters, then of the floating-point buffers."""
        return self.flat.layout

    def initial_weights(self, seed: int) -> Weights:
        """What the model's factory makes under this seed."""
        return self.flat.initial(integer_seed(seed, "initial weights"))

    @contextmanager
    def training(self, weights: Weights, samples: Samples, work: ClientWork) -> Iterator[TorchTraining]:
        """A training of these samples from `weights`, step by step.

        A step is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), f the mean loss of the mini-batch. The losses
        come from the forward passes that training makes anyway: of each sample the first, just before its step.
        """
        with self._generator(integer_seed(work.seed, "torch", 0, work.client)):
            self._steps.begin(weights, work)
            yield TorchTraining(self._steps, self._batch, samples, work)

    def train(self, weights: Weights, samples: Samples, work: ClientWork) -> TrainResult:
        """All `work.batches` steps of a training."""
        with self.training(weights, samples, work) as training:
            for rows in epochs(work):
                training.epoch(rows)
            return training.result()

    def losses(self, weights: Weights, samples: Samples, client: str) -> FloatArray:
        """Loss of every sample, in evaluation mode; `client` is whose they are."""
        self._steps.load(weights)
        made = [self._forward(samples, start)[2] for start in range(0, len(samples[1]), FORWARD_BATCH)]
        losses = _numbers(made)
        check_finite(client, np.arange(len(losses)), losses)
        return losses

    def evaluate(self, weights: Weights, samples: Samples) -> Evaluation:
        """Accuracy and mean loss. The accuracy of samples without classes is not a number."""
        return combined(self.evaluate_pieces(weights, samples, range(pieces_of(samples))))

    def evaluate_pieces(self, weights: Weights, samples: Samples, pieces: Sequence[int]) -> list[Piece]:
        """The given pieces of an evaluation, each the same whoever evaluates it and with whatever others."""
        self._steps.load(weights)
        return [self._piece(samples, number * FORWARD_BATCH) for number in pieces]

    def timed(self, samples: Samples, batch_size: int, count: int) -> list[float]:
        """Seconds of `count` training batches after one to warm up."""
        weights, rows = self.flat.read(), np.arange(len(samples[1]))
        work = ClientWork("timing", rows, count + 1, batch_size, 1e-6, 0.0, None, 0)
        seconds = []
        with self.training(weights, samples, work) as training:
            for number in range(count + 1):
                began_s = time.monotonic()
                training.step(np.arange(number * batch_size, (number + 1) * batch_size) % len(rows))
                seconds.append(max(time.monotonic() - began_s, 1e-6))
        self._steps.load(weights)
        return seconds[1:]

    def _piece(self, samples: Samples, start: int) -> Piece:
        outputs, labels, losses = self._forward(samples, start)
        right, counted = self.hits(outputs, labels)
        return float(losses.double().sum()), right, counted, len(labels)

    def _forward(self, samples: Samples, start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs, labels and per-sample losses of a piece that begins at `start`, on the CPU."""
        import torch

        features, labels = (self._batch(part, slice(start, start + FORWARD_BATCH)) for part in samples)
        with torch.no_grad():
            outputs = self._steps.apply(features)
            losses = self.loss(outputs, labels)
        return outputs.cpu(), labels.cpu(), losses.cpu()

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


class TorchTraining(NotedTraining):
    """A training while it goes on."""

    def __init__(self, steps: Steps, batch: Callable[..., torch.Tensor], samples: Samples, work: ClientWork) -> None:
        super().__init__(len(samples[1]), work, steps.update, steps.finish)
        self._steps, self._batch, self._samples = steps, batch, samples

    def step(self, rows: IndexArray) -> None:
        """Train the batch of these samples."""
        losses = self._steps.step(*(self._batch(part, rows) for part in self._samples))
        self.note(rows, lambda: _numbers([losses]))

    def epoch(self, rows: IndexArray) -> None:
        """Train these samples batch by batch: quicker than to fetch every batch for itself."""
        import torch

        split = (torch.split(self._batch(part, rows), self._work.batch_size) for part in self._samples)
        losses = [self._steps.step(*batch) for batch in zip(*split, strict=True)]
        self.note(rows, lambda: _numbers(losses))


def pieces_of(samples: Samples) -> int:
    """In how many pieces samples can be evaluated."""
    return -(-len(samples[1]) // FORWARD_BATCH)


def combined(pieces: Sequence[Piece]) -> Evaluation:
    """The evaluation from all its pieces, given in their order."""
    loss, right, counted, samples = (total(column) for column in zip(*pieces, strict=True))
    return Evaluation(right / counted if counted else math.nan, loss / samples, int(samples))


def _numbers(losses: list[torch.Tensor]) -> FloatArray:
    import torch

    values: FloatArray = torch.cat(losses).cpu().numpy().astype(np.float64)
    return values
