"""A model file against torch, layer by layer: what it makes of random batches, and the gradients behind its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbalancer.client.flat import FlatModule
from fedbalancer.client.litert import LitertModel
from fedbalancer.client.tensors import batch_of, per_sample_loss, stored
from fedbalancer.errors import BadData
from fedbalancer.export.trace import layer_name
from fedbalancer.task import Samples
from fedbalancer.types import ClientWork, FloatArray, Weights

BATCHES = (10, 1, 3)
"""Sizes of the random batches, each of which is not that of a trace."""

LOSS, GRADIENT, FLOOR = 1e-5, 1e-3, 1e-5
"""What may differ: a loss, by this much of the largest or of 1; a gradient, by this share of the layer's largest, and
by the last of the model's largest. Rounding stays far below; a wrong rule is far above."""

RATE = 1000.0
"""A step so long that the gradient can be read from it: the weights before are small beside it."""


@dataclass(frozen=True)
class Agreement:
    """The largest differences that were found, as shares as above."""

    loss: float
    gradient: float


def check_file(model: LitertModel, make: Callable[[], Any], loss: Any, samples: Samples, seed: int = 0) -> Agreement:
    """Compare on random batches of samples like these; what does not agree is `BadData` with the layer's name."""
    flat = FlatModule(make)
    worst = Agreement(0.0, 0.0)
    for number, (features, labels) in enumerate(_random(stored(samples), seed)):
        weights = flat.initial(seed + number)
        found = Agreement(_looked(model, flat, loss, weights, (features, labels)),
                          _stepped(model, flat, loss, weights, (features, labels)))  # fmt: skip
        worst = Agreement(max(worst.loss, found.loss), max(worst.gradient, found.gradient))
    return worst


def _random(samples: Samples, seed: int) -> Iterator[Samples]:
    """Batches of random features, some of them empty (where every place of a pooling is as large as the others), with
    labels that occur."""
    rng, (features, labels) = np.random.default_rng(seed), samples
    for size in BATCHES:
        chosen = rng.integers(len(labels), size=size)
        if features.dtype == np.int64:
            yield features[chosen], labels[chosen]
            continue
        made = rng.normal(size=(size, *features.shape[1:])).astype(np.float32)
        made[size // 2 + 1 :] = 0.0
        yield made, labels[chosen]


def _looked(model: LitertModel, flat: FlatModule, loss: Any, weights: Weights, batch: Samples) -> float:
    """How far the losses of a forward pass differ."""
    import torch

    flat.load(weights)
    flat.module.eval()
    features, labels = (batch_of(part, slice(None)) for part in batch)
    with torch.no_grad():
        outputs = flat.module(features)
        wanted = per_sample_loss(loss)(outputs, labels).numpy()
    off = _off(model.losses(weights, batch, "check"), wanted)
    outputs_off = _off(model.infer(batch[0]), outputs.numpy())
    if not max(off, outputs_off) <= LOSS:
        raise BadData(f"the file's forward pass differs from torch's by {max(off, outputs_off):.1e}; it is not written")
    return off


def _stepped(model: LitertModel, flat: FlatModule, loss: Any, weights: Weights, batch: Samples) -> float:
    """How far the gradients of a training step differ."""
    import torch

    flat.load(weights)
    flat.module.train()
    features, labels = (batch_of(part, slice(None)) for part in batch)
    losses = per_sample_loss(loss)(flat.module(features), labels)
    for parameter in flat.parameters:
        parameter.grad = None
    torch.autograd.backward(losses.mean())
    work = ClientWork("check", np.arange(len(labels)), 1, len(labels), RATE, 0.0, None, 0)
    model.put(weights)
    off = _off(model.step(*batch, work), losses.detach().numpy())
    if not off <= LOSS:
        raise BadData(f"the losses of a training step differ from torch's by {off:.1e}; the file is not written")
    return _compared(model, flat, weights)


def _compared(model: LitertModel, flat: FlatModule, weights: Weights) -> float:
    """By layer, the gradient that the step took beside the one that torch has now."""
    before, after = (flat.layout.split(each) for each in (weights, model.get()))
    wanted = {name: _gradient(each) for name, each in flat.module.named_parameters()}
    floor = FLOOR * max(float(np.abs(each).max()) for each in wanted.values())
    worst = 0.0
    for name, true in wanted.items():
        took = (before[name].astype(np.float64) - after[name]) / RATE
        off, largest = float(np.abs(took - true).max()), float(np.abs(true).max())
        if not off <= GRADIENT * largest + floor:
            layer, _, tensor = name.rpartition(".")
            raise BadData(
                f"layer {layer_name(layer, flat.module.get_submodule(layer))}: the gradient of its {tensor} differs "
                f"from torch's by {off:.1e}, where its largest is {largest:.1e}; the file is not written"
            )
        worst = max(worst, off / (largest + floor / GRADIENT))
    return worst


def _gradient(parameter: Any) -> FloatArray:
    found: FloatArray = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.double().numpy()
    return found


def _off(found: Any, wanted: Any) -> float:
    wanted = wanted.astype(np.float64)
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1.0))
