"""SGD steps on the rewritten module: some layers take their own steps, the others have gradients as usual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedbalancer.core.optimizers import SGD
from fedbalancer.core.types import Arrays, ClientWork, Weights
from fedbalancer.core.types.round import total
from fedbalancer.training.fast.chain import Chain
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.plan import FastPlan
from fedbalancer.training.fast.row import Row
from fedbalancer.training.fast.words import HoldsGradient, WordLosses
from fedbalancer.training.optimizers import MakeOptimizer, begin_optimizer, read_state
from fedbalancer.training.sgd import run_module
from fedbalancer.training.tensors import FlatModule, count_labelled, mean_loss

if TYPE_CHECKING:
    from fedbalancer.training.tensors import Loss


class FastSteps:
    """The steps of `PlainSteps`, within float error.

    With clipping, which needs all gradients at once, dense layers have gradients as well. Layers hold their gradients
    unless there is a proximal term, which moves all weights. With momentum or another option of SGD, all layers have
    gradients, and torch's optimizer takes the step.

    Args:
        flat: The module.
        loss: Returns per-sample losses.
        plan: How its layers run.
        optimizer: Makes the optimizer of trainings whose optimizer is `custom`.
    """

    def __init__(self, flat: FlatModule, loss: Loss, plan: FastPlan, optimizer: MakeOptimizer | None = None) -> None:
        self._flat, self._loss, self._plan, self._own = flat, loss, plan, optimizer
        self._fused: tuple[FusedDense, ...] = ()
        self._held: tuple[HoldsGradient, ...] = ()
        self._losses: WordLosses | None = None
        self._chain: Chain | None = None
        self._row: Row | None = None
        self._stepped: list[nn.Parameter] = []
        self._anchors: list[Tensor] = []

    def begin(self, weights: Weights, work: ClientWork) -> None:
        """Begin a training from these weights."""
        self.load(weights)
        self._plan.module.train()
        self._weights, self._work = weights, work
        plain = work.training.optimizer == SGD
        self._optimizer = None if plain else begin_optimizer(work, self._own, self._flat.parameters)
        steps_itself = work.clip_norm is None and self._optimizer is None
        self._fused = self._plan.fused if steps_itself else ()
        self._chain = self._plan.chain if steps_itself else None
        self._row = self._plan.row if steps_itself else None
        moves_all = work.mu or self._optimizer is not None
        self._held, self._losses = ((), None) if moves_all else (self._plan.held, self._plan.losses)
        layers: tuple[FusedDense | HoldsGradient, ...] = (*self._fused, *self._held)
        own = {id(parameter) for layer in layers for parameter in layer.parameters()}
        self._stepped = [parameter for parameter in self._flat.parameters if id(parameter) not in own]
        self._anchors = [parameter.detach().clone() for parameter in self._stepped] if work.mu else []
        for fused in self._fused:
            fused.begin(work.learning_rate, work.mu, work.batches * work.batch_size)
        for held in self._held:
            held.begin()
        if self._row is not None:
            self._row.begin(work.learning_rate, work.mu)

    def step(self, features: Tensor, labels: Tensor) -> Tensor:
        """Train one batch; return its per-sample losses before the step."""
        losses = None if self._row is None else self._row.step(features, labels)
        return self._step_by_layers(features, labels) if losses is None else losses

    def _step_by_layers(self, features: Tensor, labels: Tensor) -> Tensor:
        for parameter in self._stepped:
            parameter.grad = None
        losses = self._by_autograd(features, labels) if self._chain is None else self._by_chain(features, labels)
        with torch.no_grad():
            self._apply_gradients()
        return losses.detach()

    def _by_autograd(self, features: Tensor, labels: Tensor) -> Tensor:
        if self._losses is not None:
            self._losses.labels = labels
            losses: Tensor = run_module(self._plan.module, features, self._work)
        else:
            losses = self._loss(run_module(self._plan.module, features, self._work), labels)
        torch.autograd.backward(mean_loss(losses, labels))
        return losses

    def _by_chain(self, features: Tensor, labels: Tensor) -> Tensor:
        """Leave only the loss, which may be any function, to autograd."""
        assert self._chain is not None
        with torch.no_grad():
            outputs = run_module(self._chain, features, self._work)
        losses = self._loss(outputs.requires_grad_(), labels)
        share = 1.0 / max(count_labelled(labels), 1)
        (gradient,) = torch.autograd.grad(losses, outputs, torch.full_like(losses, share))
        with torch.no_grad():
            self._chain.backward(gradient)
        return losses

    def _apply_gradients(self) -> None:
        for parameter, anchor in zip(self._stepped, self._anchors, strict=bool(self._anchors)):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - anchor, alpha=self._work.mu)
        rate = self._work.learning_rate
        if self._held:
            rate *= self._clipping_factor()
        elif self._work.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._stepped, self._work.clip_norm)
        if self._optimizer is not None:
            self._optimizer.step()
            return
        for parameter in self._stepped:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-rate)
        for layer in self._held:
            layer.step(rate)

    def _clipping_factor(self) -> float:
        """Return torch's clipping factor; the exact norm is computed only if its upper bound is too large."""
        if self._work.clip_norm is None:
            return 1.0
        grads = [parameter.grad for parameter in self._stepped if parameter.grad is not None]
        others = total(float(torch.linalg.vector_norm(grad)) ** 2 for grad in grads)
        norm = math.sqrt(others + total(layer.squared_norm_bound() for layer in self._held))
        if not norm + 1e-6 <= self._work.clip_norm:
            norm = math.sqrt(others + total(layer.squared_norm() for layer in self._held))
        return 1.0 if norm + 1e-6 <= self._work.clip_norm else self._work.clip_norm / (norm + 1e-6)

    def optimizer_arrays(self) -> Arrays:
        """Return the optimizer's state, for a client that keeps it for the next round."""
        return read_state(self._optimizer)

    def update(self) -> Weights:
        """Return the current update; a dense layer with its own steps writes its part directly."""
        update: Weights = np.empty_like(self._weights)
        written, rest = torch.from_numpy(update), dict(self._flat.spans)
        for layer in self._fused:
            spans = [self._flat.spans[id(parameter)] for parameter in layer.parameters()]
            bias = written[spans[1]] if len(spans) > 1 else None
            if not layer.update_into(written[spans[0]].view_as(layer.weight), bias):
                raise RuntimeError("a dense layer with its own step was ended before its training")
            rest = {key: span for key, span in rest.items() if span not in spans}
        self._flat.update_into(update, self._weights, rest.values())
        return update

    def finish(self) -> Weights:
        """End the training and return the update."""
        update = self.update()
        for layer in self._fused:
            layer.end()
        for held in self._held:
            held.end()
        return update

    def load(self, weights: Weights) -> None:
        """Load weights for `apply`."""
        for layer in self._plan.fused:
            layer.finish()  # an error may have interrupted a training
        for held in self._plan.held:
            held.end()
        self._flat.load(weights)

    def apply(self, features: Tensor) -> Tensor:
        """Return the outputs in evaluation mode."""
        outputs: Tensor = self._plan.module.eval()(features)
        return outputs
