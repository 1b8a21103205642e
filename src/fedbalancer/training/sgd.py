"""Steps of plain mini-batch SGD by torch's own operations, the reference that any faster way has to agree with, or of
an optimizer of the user's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from fedbalancer.core.errors import BadData, BadSetting
from fedbalancer.core.types import ClientWork, Weights
from fedbalancer.training.flat import FlatModule
from fedbalancer.training.model_check import refused

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.tensors import Loss


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


MakeOptimizer = Callable[..., Any]
"""(parameters, lr=...) -> a `torch.optim.Optimizer`: such a class, or a partial of one."""


class PlainSteps:
    """w <- w - lr * clip(grad f(w) + mu * (w - w_global)), f the mean loss of the mini-batch, one tensor at a time;
    with an `optimizer`, what that makes of the same gradients. It is made anew for every training."""

    def __init__(self, flat: FlatModule, loss: Loss, optimizer: MakeOptimizer | None = None) -> None:
        self._flat = flat
        self._loss = loss
        self._make = optimizer
        self._anchors: list[torch.Tensor] = []

    def begin(self, weights: Weights, work: ClientWork) -> None:
        self._flat.load(weights)
        self._flat.module.train()
        self._weights, self._work = weights, work
        self._anchors = [parameter.detach().clone() for parameter in self._flat.parameters] if work.mu else []
        make, parameters = self._make, self._flat.parameters
        self._optimizer = None if make is None else made_optimizer(make, parameters, work.learning_rate)

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
            self._move(parameters)
        return losses.detach()

    def _move(self, parameters: list[torch.nn.Parameter]) -> None:
        """The step itself, by the gradients that the parameters have."""
        if self._optimizer is not None:
            self._optimizer.step()
            return
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._work.learning_rate)

    def update(self) -> Weights:
        return self._flat.update(self._weights)

    finish = update

    def load(self, weights: Weights) -> None:
        self._flat.load(weights)

    def apply(self, features: torch.Tensor) -> torch.Tensor:
        self._flat.module.eval()
        outputs: torch.Tensor = self._flat.module(features)
        return outputs


def made_optimizer(make: MakeOptimizer, parameters: list[torch.nn.Parameter], learning_rate: float) -> Any:
    """The user's optimizer for these parameters; one that cannot be used is told."""
    import torch

    try:
        made = make(parameters, lr=learning_rate)
    except (TypeError, ValueError) as error:
        raise BadSetting(f"optimizer(parameters, lr={learning_rate:g}) failed: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise BadSetting(f"optimizer must make a torch.optim.Optimizer, not {type(made).__name__}")
    if isinstance(made, torch.optim.LBFGS):
        raise BadSetting("optimizer LBFGS evaluates a batch several times a step, which no deadline can foresee")
    return made


def outputs_of(
    module: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor, work: ClientWork
) -> torch.Tensor:
    """The module's outputs for a batch. A batch that it cannot take is an error with the client's name."""
    try:
        with _norms_of_one_value(module) if len(features) == 1 else nullcontext():
            return module(features)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadData(f"client {work.client!r}: {refused(features, error)}") from error


@contextmanager
def _norms_of_one_value(module: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """A context in which batch norms use their running statistics where a batch has one value per channel: a single
    value has no variance, and torch refuses it. The last batch of a client is often a single sample."""
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
