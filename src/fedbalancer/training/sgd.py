"""Training steps by torch's own operations, and the record that every local training keeps.

`PlainSteps` is the reference that the fast backend has to agree with. It also runs all other optimizers, accumulates
gradients and computes in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedbalancer.core.errors import BadData, TrainingDiverged
from fedbalancer.core.optimizers import SGD
from fedbalancer.core.samples import count_rows
from fedbalancer.core.types import Arrays, ClientWork, FloatArray, IndexArray, TrainResult, Weights, batches_per_epoch
from fedbalancer.training.model_check import describe_failure
from fedbalancer.training.optimizers import MakeOptimizer, begin_optimizer, read_state
from fedbalancer.training.tensors import FlatModule, call_model, count_labelled, mean_loss, to_float32

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.tensors import Loss


class Steps(Protocol):
    """Trains a model (`begin`, then any number of `step` and `update`, then `finish`) and applies it."""

    def begin(self, weights: Weights, work: ClientWork) -> None:
        """Begin a training from these weights."""

    def step(self, features: Any, labels: torch.Tensor) -> torch.Tensor:
        """Train one batch; return its per-sample losses before the step."""

    def optimizer_arrays(self) -> Arrays:
        """Return the optimizer's state, for a client that keeps it for the next round."""

    def update(self) -> Weights:
        """Return the current weights minus those at the beginning."""

    def finish(self) -> Weights:
        """End the training; return the final weights minus those at the beginning."""

    def load(self, weights: Weights) -> None:
        """Load weights for `apply`."""

    def apply(self, features: Any) -> Any:
        """Return the outputs in evaluation mode; call it without gradients."""


Batch = tuple[Any, Any, int]
"""Features and labels of a batch, and the number of its samples that count in the loss, if gradients accumulate."""


class PlainSteps:
    """Steps by torch's own operations, of plain SGD or of any optimizer of torch.

    Plain SGD is w <- w - lr * clip(grad f(w) + mu * (w - w_global)), where f is the mean loss of the samples since the
    last step. Other optimizers get the same gradient.

    Args:
        flat: The module.
        loss: Returns per-sample losses.
        optimizer: Makes the optimizer of trainings whose optimizer is `custom`.
        forward: The task's function of (model, features).
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Loss,
        optimizer: MakeOptimizer | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._flat = flat
        self._loss = loss
        self._own = optimizer
        self._forward = forward
        self._anchors: list[torch.Tensor] = []

    def begin(self, weights: Weights, work: ClientWork) -> None:
        """Begin a training from these weights."""
        self._flat.load(weights)
        self._flat.module.train()
        self._weights, self._work = weights, work
        self._anchors = [parameter.detach().clone() for parameter in self._flat.parameters] if work.mu else []
        plain = work.training.optimizer == SGD
        self._optimizer = None if plain else begin_optimizer(work, self._own, self._flat.parameters)
        self._batches, self._per_epoch = 0, work.per_epoch
        self._group: list[Batch] = []

    def optimizer_arrays(self) -> Arrays:
        """Return the optimizer's state, for a client that keeps it for the next round."""
        return read_state(self._optimizer)

    def step(self, features: Any, labels: torch.Tensor) -> torch.Tensor:
        """Train one batch; return its per-sample losses before the step."""
        import torch

        outputs = self._outputs(features)
        losses = self._loss(outputs, labels)
        objective, accumulate = self._objective(losses, outputs, labels), self._work.training.accumulate
        if not self._group:
            for parameter in self._flat.parameters:
                parameter.grad = None
        samples = 1 if accumulate == 1 else count_labelled(labels)
        torch.autograd.backward(objective if accumulate == 1 else objective * samples)
        self._group.append((features, labels, samples))
        self._batches += 1
        if self._batches % self._per_epoch % accumulate == 0:  # also after the last batch of an epoch
            self._take_step()
        return losses.detach()

    def _outputs(self, features: Any) -> Any:
        """Return the module's outputs, in float32."""
        import torch

        if self._work.training.dtype == "float32":
            return run_module(self._flat.module, features, self._work, self._forward)
        with torch.autocast(self._flat.parameters[0].device.type, torch.bfloat16):
            return to_float32(run_module(self._flat.module, features, self._work, self._forward))

    def _take_step(self) -> None:
        """Take the step of all batches since the last one."""
        import torch

        parameters, group = self._flat.parameters, self._group
        self._group = []
        with torch.no_grad():
            if self._work.training.accumulate > 1:
                samples = max(sum(each for _, _, each in group), 1)
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.div_(samples)
            for parameter, anchor in zip(parameters, self._anchors, strict=bool(self._anchors)):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - anchor, alpha=self._work.mu)
            self._adjust_gradients(group)
            if self._work.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self._work.clip_norm)
            self._apply_gradients(parameters)
            self._after_step()

    def _objective(self, losses: torch.Tensor, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the value to minimise."""
        return mean_loss(losses, labels)

    def _adjust_gradients(self, group: list[Batch]) -> None:
        """Change the gradients of a step before they are clipped; here nothing is changed."""

    def _after_step(self) -> None:
        """Change the weights after a step; here nothing is changed."""

    def _apply_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        if self._optimizer is not None:
            self._optimizer.step()
            return
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._work.learning_rate)

    def update(self) -> Weights:
        """Return the current weights minus those at the beginning."""
        return self._flat.update(self._weights)

    def finish(self) -> Weights:
        """Take the step of batches that are left; return the final weights minus those at the beginning."""
        if self._group:
            self._take_step()
        for parameter in self._flat.parameters:
            parameter.grad = None  # the update takes their memory
        return self.update()

    def load(self, weights: Weights) -> None:
        """Load weights for `apply`."""
        self._flat.load(weights)

    def apply(self, features: Any) -> Any:
        """Return the outputs in evaluation mode."""
        self._flat.module.eval()
        return call_model(self._flat.module, features, self._forward)


MODEL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
"""What a model raises if a batch does not fit it."""


def run_module(
    module: Callable[..., Any], features: Any, work: ClientWork, forward: Callable[[Any, Any], Any] | None = None
) -> Any:
    """Return a module's outputs for a batch.

    Args:
        module: The module.
        features: The batch.
        work: The client's work, for error messages.
        forward: The task's function of (model, features).

    Raises:
        BadData: If the module fails on the batch; the message names the client.
    """
    rows = len(features) if hasattr(features, "detach") else count_rows(features)
    try:
        with _batch_norms_accept_one_value(module) if rows == 1 else nullcontext():
            return call_model(module, features, forward)
    except MODEL_ERRORS as error:
        raise BadData(f"client {work.client!r}: {describe_failure(features, error)}") from error


@contextmanager
def _batch_norms_accept_one_value(module: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """A context in which batch norms use their running statistics if a batch has one value per channel.

    One value has no variance, and torch rejects it. The last batch of a client is often a single sample.
    """
    import torch

    layers = module.modules() if isinstance(module, torch.nn.Module) else ()
    norms = [
        layer
        for layer in layers
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.training and layer.track_running_stats
    ]
    hooks = [norm.register_forward_pre_hook(_train_unless_one_value) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for norm in norms:
            norm.train()


def _train_unless_one_value(norm: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
    norm.train(inputs[0].numel() > inputs[0].shape[1])


class RecordedTraining:
    """Records the first loss of every sample and the number of steps before it, and makes the result.

    Args:
        size: Number of the client's samples.
        work: The client's work.
        update: Returns the current update.
        finish: Ends the training and returns the final update.
    """

    def __init__(
        self, size: int, work: ClientWork, update: Callable[[], Weights], finish: Callable[[], Weights]
    ) -> None:
        self._work, self._update, self._finish = work, update, finish
        self._unseen = np.zeros(size, dtype=bool)
        self._unseen[work.indices] = True
        self._seen: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        self._losses: list[FloatArray] = [np.empty(0)]
        self._before: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        self._steps_done = 0
        self._kept: tuple[Weights, int, Any] | None = None

    def record(self, rows: IndexArray, losses: Callable[[], FloatArray]) -> None:
        """Record the samples of one or several batches.

        Args:
            rows: The samples, in the order of training.
            losses: Returns their losses; called only if a sample is new.
        """
        fresh = self._unseen[rows]
        if fresh.any():
            self._seen.append(rows[fresh])
            self._losses.append(losses()[fresh])
            self._before.append(self._steps_done + np.flatnonzero(fresh) // self._work.batch_size)
            self._unseen[rows] = False
        self._steps_done += batches_per_epoch(len(rows), self._work.batch_size)

    def keep(self) -> None:
        """Remember the current model."""
        self._kept = self._update(), len(self._seen), self._current_run()

    def kept(self) -> TrainResult:
        """Return the result at the last `keep`."""
        assert self._kept is not None
        return self._result(*self._kept)

    def result(self) -> TrainResult:
        """End the training and return its result."""
        return self._result(self._finish(), len(self._seen), self._current_run())

    def _current_run(self) -> Any:
        """Return what a policy of the method knows about the training; here nothing."""
        return None

    def _result(self, update: Weights, pieces: int, run: Any) -> TrainResult:
        client, advice = self._work.client, _advise(self._work)
        rows, losses = np.concatenate(self._seen[:pieces]), np.concatenate(self._losses[:pieces])
        steps = np.concatenate(self._before[:pieces])
        order = np.argsort(rows, kind="stable")
        check_finite(client, rows, losses, f"; {advice}")
        with np.errstate(all="ignore"):
            finite = math.isfinite(update.sum()) or np.isfinite(update).all()  # the sum is faster
        if not finite:
            raise TrainingDiverged(f"client {client!r}: the update is not finite; {advice}")
        return TrainResult(client, update, rows[order], losses[order], steps[order])


def check_finite(client: str, rows: IndexArray, losses: FloatArray, advice: str = "") -> None:
    """Check that all losses are finite.

    Args:
        client: The client's id.
        rows: The samples.
        losses: Their losses.
        advice: Appended to the message.

    Raises:
        TrainingDiverged: If a loss is not finite; the message names the sample.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise TrainingDiverged(f"client {client!r}: the loss of sample {rows[bad[0]]} is {losses[bad[0]]}{advice}")


def _advise(work: ClientWork) -> str:
    return f"lower the learning rate (now {work.learning_rate:g}) or the clip_norm (now {work.clip_norm})"
