"""Steps of plain mini-batch SGD by torch's own operations: the reference that any faster way has to agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fedbalancer.client.flat import FlatModule
from fedbalancer.client.model_check import refused
from fedbalancer.errors import BadData
from fedbalancer.types import ClientWork, Weights

if TYPE_CHECKING:
    import torch

    from fedbalancer.client.tensors import Loss


class Steps(Protocol):
    """How a model is trained (`begin`, any number of `step` and `update`, `finish`) and applied (`load`, `apply`)."""

    def begin(self, weights: Weights, work: ClientWork) -> None: ...
    def step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step of SGD; the per-sample losses from before it."""

    def update(self) -> Weights:
        """New weights minus the weights at the beginning, so far."""

    def finish(self) -> Weights:
        """The same at the end of the training."""

    def load(self, weights: Weights) -> None: ...
    def apply(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs of the model in evaluation mode; to be called without gradients."""


class PlainSteps:
    """w <- w - lr * clip(grad f(w) + mu * (w - w_global)), f the mean loss of the mini-batch, one tensor at a time."""

    def __init__(self, flat: FlatModule, loss: Loss) -> None:
        self._flat = flat
        self._loss = loss
        self._anchors: list[torch.Tensor] = []

    def begin(self, weights: Weights, work: ClientWork) -> None:
        self._flat.load(weights)
        self._flat.module.train()
        self._weights, self._work = weights, work
        self._anchors = [parameter.detach().clone() for parameter in self._flat.parameters] if work.mu else []

    def step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        import torch

        parameters = self._flat.parameters
        losses = self._loss(outputs_of(self._flat.module, features, self._work), labels)
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(losses.mean())
        with torch.no_grad():
            for parameter, anchor in zip(parameters, self._anchors, strict=bool(self._anchors)):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - anchor, alpha=self._work.mu)
            if self._work.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self._work.clip_norm)
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-self._work.learning_rate)
        return losses.detach()

    def update(self) -> Weights:
        return self._flat.update(self._weights)

    finish = update

    def load(self, weights: Weights) -> None:
        self._flat.load(weights)

    def apply(self, features: torch.Tensor) -> torch.Tensor:
        self._flat.module.eval()
        outputs: torch.Tensor = self._flat.module(features)
        return outputs


def outputs_of(
    module: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor, work: ClientWork
) -> torch.Tensor:
    """What the module makes of a batch; a batch that it cannot take is told with the client's name."""
    try:
        return module(features)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadData(f"client {work.client!r}: {refused(features, error)}") from error
