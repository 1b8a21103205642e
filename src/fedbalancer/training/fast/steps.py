"""Steps of SGD on the rewritten module. Dense layers take their own steps; the others have gradients as usual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedbalancer.core.types import ClientWork, Weights
from fedbalancer.core.types.arrays import total
from fedbalancer.training.fast.chain import Chain
from fedbalancer.training.fast.dense import FusedDense
from fedbalancer.training.fast.held import Held
from fedbalancer.training.fast.plan import FastPlan
from fedbalancer.training.fast.row import Row
from fedbalancer.training.fast.words import WordLosses
from fedbalancer.training.flat import FlatModule
from fedbalancer.training.sgd import outputs_of

if TYPE_CHECKING:
    from fedbalancer.training.tensors import Loss


class FastSteps:
    """The steps of `PlainSteps`, within float error. With clipping, which needs all gradients at once, dense layers
    have gradients too. Layers that hold their gradients do so unless there is a proximal term, which moves all weights.
    """

    def __init__(self, flat: FlatModule, loss: Loss, plan: FastPlan) -> None:
        self._flat, self._loss, self._plan = flat, loss, plan
        self._fused: tuple[FusedDense, ...] = ()
        self._held: tuple[Held, ...] = ()
        self._losses: WordLosses | None = None
        self._chain: Chain | None = None
        self._row: Row | None = None
        self._stepped: list[nn.Parameter] = []
        self._anchors: list[Tensor] = []

    def begin(self, weights: Weights, work: ClientWork) -> None:
        self.load(weights)
        self._plan.module.train()
        self._weights, self._work = weights, work
        self._fused = self._plan.fused if work.clip_norm is None else ()
        self._chain = self._plan.chain if work.clip_norm is None else None
        self._row = self._plan.row if work.clip_norm is None else None
        self._held, self._losses = ((), None) if work.mu else (self._plan.held, self._plan.losses)
        layers: tuple[FusedDense | Held, ...] = (*self._fused, *self._held)
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
        done = None if self._row is None else self._row.step(features, labels)
        return self._layer_by_layer(features, labels) if done is None else done

    def _layer_by_layer(self, features: Tensor, labels: Tensor) -> Tensor:
        for parameter in self._stepped:
            parameter.grad = None
        losses = self._by_autograd(features, labels) if self._chain is None else self._by_chain(features, labels)
        with torch.no_grad():
            self._apply_gradients()
        return losses.detach()

    def _by_autograd(self, features: Tensor, labels: Tensor) -> Tensor:
        if self._losses is not None:
            self._losses.labels = labels
            losses = outputs_of(self._plan.module, features, self._work)
        else:
            losses = self._loss(outputs_of(self._plan.module, features, self._work), labels)
        torch.autograd.backward(losses.mean())
        return losses

    def _by_chain(self, features: Tensor, labels: Tensor) -> Tensor:
        """Only the loss, which may be anything, is left to autograd."""
        assert self._chain is not None
        with torch.no_grad():
            outputs = outputs_of(self._chain, features, self._work)
        losses = self._loss(outputs.requires_grad_(), labels)
        (gradient,) = torch.autograd.grad(losses, outputs, torch.full_like(losses, 1.0 / len(losses)))
        with torch.no_grad():
            self._chain.backward(gradient)
        return losses

    def _apply_gradients(self) -> None:
        for parameter, anchor in zip(self._stepped, self._anchors, strict=bool(self._anchors)):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - anchor, alpha=self._work.mu)
        rate = self._work.learning_rate
        if self._held:
            rate *= self._kept_share()
        elif self._work.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._stepped, self._work.clip_norm)
        for parameter in self._stepped:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-rate)
        for layer in self._held:
            layer.step(rate)

    def _kept_share(self) -> float:
        """What clipping leaves of all gradients, as torch has it. The exact norm is needed only where a bound that is
        found quickly is too long."""
        if self._work.clip_norm is None:
            return 1.0
        grads = [parameter.grad for parameter in self._stepped if parameter.grad is not None]
        others = total(float(torch.linalg.vector_norm(grad)) ** 2 for grad in grads)
        norm = math.sqrt(others + total(layer.most() for layer in self._held))
        if not norm + 1e-6 <= self._work.clip_norm:
            norm = math.sqrt(others + total(layer.square() for layer in self._held))
        return 1.0 if norm + 1e-6 <= self._work.clip_norm else self._work.clip_norm / (norm + 1e-6)

    def update(self) -> Weights:
        """New weights minus the old, so far; of a dense layer its own update, which it may never have added to its
        weights."""
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
        update = self.update()
        for layer in self._fused:
            layer.end()
        for held in self._held:
            held.end()
        return update

    def load(self, weights: Weights) -> None:
        for layer in self._plan.fused:
            layer.finish()  # a training that an error ended
        for held in self._plan.held:
            held.end()
        self._flat.load(weights)

    def apply(self, features: Tensor) -> Tensor:
        outputs: Tensor = self._plan.module.eval()(features)
        return outputs
