"""A model file against torch, layer by layer: what it makes of random batches, and the gradients behind its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientWork, FloatArray, Weights
from fedbalancer.export.trace import layer_name
from fedbalancer.training.model_file import ModelFile
from fedbalancer.training.tensors import FlatModule, make_batch, prepare_samples, resolve_loss

if TYPE_CHECKING:
    import torch

BATCHES = (10, 1, 3)
"""Sizes of the random batches, none of which is that of a trace."""

LOSS, GRADIENT, FLOOR, AS_TORCH = 1e-5, 1e-3, 1e-5, 8.0
"""How far the file may be from torch in double precision: a loss or output by this share of the largest or of 1, a
gradient by this share of the layer's largest and by the next of the model's, or anything by so many times what torch
itself is off in single precision. Rounding stays far below; a wrong rule is far above."""

RATE = 1000.0
"""A step so long that the gradient can be read from it: the weights before are small beside it."""


@dataclass(frozen=True)
class Agreement:
    """The largest differences that were found: of losses, and of gradients as shares of the layer's largest."""

    loss: float
    gradient: float


@dataclass(frozen=True, eq=False)
class Results:
    """What a model makes of a batch: outputs and losses in evaluation mode, losses and gradients in a step."""

    outputs: FloatArray
    losses: FloatArray
    step_losses: FloatArray
    gradients: dict[str, FloatArray]


def check_file(model: ModelFile, make: Callable[[], Any], loss: Any, samples: Samples, seed: int = 0) -> Agreement:
    """Compare on random batches of samples like these; what does not agree is `BadData` with the layer's name."""
    flat = FlatModule(make)
    worst = Agreement(0.0, 0.0)
    for number, batch in enumerate(_random(prepare_samples(samples), seed)):
        weights = flat.initial(seed + number)
        flat.load(weights)
        single, double = (_by_torch(module, loss, batch) for module in (flat.module, deepcopy(flat.module).double()))
        found = _compared(flat.module, _by_file(model, weights, batch), single, double)
        worst = Agreement(max(worst.loss, found.loss), max(worst.gradient, found.gradient))
    return worst


def _random(samples: Samples, seed: int) -> Iterator[Samples]:
    """Batches of random features, some of them empty (where every place of a pooling is as large as the others), with
    labels that occur. Whole numbers are those of the samples."""
    rng, (features, labels) = np.random.default_rng(seed), samples
    for size in BATCHES:
        chosen = rng.integers(len(labels), size=size)
        made = features[chosen]
        if features.dtype != np.int64:
            made = rng.normal(size=made.shape).astype(np.float32)
            made[size // 2 + 1 :] = 0.0
        yield made, labels[chosen]


def _by_torch(module: torch.nn.Module, loss: Any, batch: Samples) -> Results:
    """In the precision of the module."""
    import torch

    parameters = dict(module.named_parameters())
    kind = next(iter(parameters.values())).dtype
    features, labels = (part.to(kind) if part.is_floating_point() else part for part in map(_tensor, batch))
    values = resolve_loss(loss)
    with torch.no_grad():
        outputs = module.eval()(features)
        losses = values(outputs, labels)
    stepped = values(module.train()(features), labels)
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    gradients = torch.autograd.grad(stepped.mean(), list(trained.values()), allow_unused=True)
    there = {name: each for name, each in zip(trained, gradients, strict=True) if each is not None}
    zeros = {name: np.zeros(each.shape) for name, each in parameters.items()}
    found = {name: each.double().numpy() for name, each in there.items()}
    plain = [part.detach().double().numpy() for part in (outputs, losses, stepped)]
    return Results(plain[0], plain[1], plain[2], zeros | found)


def _tensor(part: Any) -> torch.Tensor:
    return make_batch(part, slice(None))


def _by_file(model: ModelFile, weights: Weights, batch: Samples) -> Results:
    losses = model.losses(weights, batch, "check")
    outputs = model.infer(batch[0]).astype(np.float64)
    size = len(batch[1])
    stepped = model.step(*batch, ClientWork("check", np.arange(size), 1, size, RATE, 0.0, None, 0))
    before, after = (model.layout.split(each) for each in (weights, model.get()))
    gradients = {name: (before[name].astype(np.float64) - after[name]) / RATE for name in before}
    return Results(outputs, losses, stepped, gradients)


def _compared(module: torch.nn.Module, file: Results, single: Results, double: Results) -> Agreement:
    loss = 0.0
    for what in ("outputs", "losses", "step_losses"):
        true = getattr(double, what)
        off, own = (float(np.abs(getattr(each, what) - true).max()) for each in (file, single))
        if not off <= max(LOSS * max(float(np.abs(true).max()), 1.0), AS_TORCH * own):
            raise BadData(f"the file's {what.replace('_', ' ')} differ from torch's by {off:.1e}; it is not written")
        loss = max(loss, off) if what != "outputs" else loss
    floor = FLOOR * max(float(np.abs(each).max()) for each in double.gradients.values())
    shares = [_gradient(module, name, file, single, double, floor) for name in double.gradients]
    return Agreement(loss, max(shares))


def _gradient(
    module: torch.nn.Module, name: str, file: Results, single: Results, double: Results, floor: float
) -> float:
    """How far the gradient of a tensor is off, as a share of its largest."""
    true = double.gradients[name]
    off, own = (float(np.abs(each.gradients[name] - true).max()) for each in (file, single))
    largest = float(np.abs(true).max())
    if not off <= max(GRADIENT * largest + floor, AS_TORCH * own):
        layer, _, tensor = name.rpartition(".")
        raise BadData(
            f"layer {layer_name(layer, module.get_submodule(layer))}: the gradient of its {tensor} differs from "
            f"torch's by {off:.1e}, where its largest is {largest:.1e}; the file is not written"
        )
    return off / (largest + floor / GRADIENT)
