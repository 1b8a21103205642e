"""Checks a model file against torch, layer by layer: its outputs and losses on random batches, and its gradients."""

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
"""Sizes of the random batches; all differ from those of the trace."""

LOSS_TOLERANCE, GRADIENT_TOLERANCE, GRADIENT_FLOOR, ROUNDING_FACTOR = 1e-5, 1e-3, 1e-5, 8.0
"""Largest error against torch in double precision.

A loss or output may differ by `LOSS_TOLERANCE` times the largest value or 1. A gradient may differ by
`GRADIENT_TOLERANCE` times the largest of its layer plus `GRADIENT_FLOOR` times the largest of the model. Any value may
differ by `ROUNDING_FACTOR` times torch's own error in single precision. Rounding errors are far below these bounds, a
wrong operator is far above.
"""

RATE = 1000.0
"""Learning rate of the checked step, large enough to read the gradient from the change of the weights."""


@dataclass(frozen=True)
class Agreement:
    """Largest differences between a file and torch.

    Args:
        loss: Largest absolute difference of a loss.
        gradient: Largest difference of a gradient, relative to the largest gradient of its layer.
    """

    loss: float
    gradient: float


@dataclass(frozen=True, eq=False)
class Results:
    """Results of a model for one batch.

    Args:
        outputs: Outputs in evaluation mode.
        losses: Losses in evaluation mode.
        step_losses: Losses of a training step.
        gradients: Gradients of a training step, by parameter name.
    """

    outputs: FloatArray
    losses: FloatArray
    step_losses: FloatArray
    gradients: dict[str, FloatArray]


def check_file(model: ModelFile, make: Callable[[], Any], loss: Any, samples: Samples, seed: int = 0) -> Agreement:
    """Compare a model file with torch on random batches.

    Args:
        model: The opened file.
        make: Function that returns the torch model.
        loss: Loss name or function of the task.
        samples: Example samples; the random batches have their shapes, types and labels.
        seed: Seed of batches and weights.

    Returns:
        The largest differences.

    Raises:
        BadData: A difference is too large; the message names the layer.
    """
    flat = FlatModule(make)
    worst = Agreement(0.0, 0.0)
    for number, batch in enumerate(_random_batches(prepare_samples(samples), seed)):
        weights = flat.initial(seed + number)
        flat.load(weights)
        single, double = (_run_torch(module, loss, batch) for module in (flat.module, deepcopy(flat.module).double()))
        agreement = _compare(flat.module, _run_file(model, weights, batch), single, double)
        worst = Agreement(max(worst.loss, agreement.loss), max(worst.gradient, agreement.gradient))
    return worst


def _random_batches(samples: Samples, seed: int) -> Iterator[Samples]:
    """Yield batches of random features with existing labels. Some samples are all zeros, for ties in a pooling."""
    rng, (features, labels) = np.random.default_rng(seed), samples
    for size in BATCHES:
        chosen = rng.integers(len(labels), size=size)
        random = features[chosen]
        if features.dtype != np.int64:
            random = rng.normal(size=random.shape).astype(np.float32)
            random[size // 2 + 1 :] = 0.0
        yield random, labels[chosen]


def _run_torch(module: torch.nn.Module, loss: Any, batch: Samples) -> Results:
    """Compute the results in the precision of the module."""
    import torch

    parameters = dict(module.named_parameters())
    kind = next(iter(parameters.values())).dtype
    features, labels = (part.to(kind) if part.is_floating_point() else part for part in map(_tensor, batch))
    values = resolve_loss(loss)
    with torch.no_grad():
        outputs = module.eval()(features)
        losses = values(outputs, labels)
    step_losses = values(module.train()(features), labels)
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    gradients = torch.autograd.grad(step_losses.mean(), list(trained.values()), allow_unused=True)
    present = {name: each for name, each in zip(trained, gradients, strict=True) if each is not None}
    zeros = {name: np.zeros(each.shape) for name, each in trained.items()}
    computed = {name: each.double().numpy() for name, each in present.items()}
    plain = [part.detach().double().numpy() for part in (outputs, losses, step_losses)]
    return Results(plain[0], plain[1], plain[2], zeros | computed)


def _tensor(part: Any) -> torch.Tensor:
    tensor: torch.Tensor = make_batch(part, slice(None))
    return tensor


def _run_file(model: ModelFile, weights: Weights, batch: Samples) -> Results:
    losses = model.losses(weights, batch, "check")
    outputs = model.infer(batch[0]).astype(np.float64)
    size = len(batch[1])
    step_losses = model.step(*batch, ClientWork("check", np.arange(size), 1, size, RATE, 0.0, None, 0))
    before, after = (model.layout.split(each) for each in (weights, model.get()))
    gradients = {name: (before[name].astype(np.float64) - after[name]) / RATE for name in before}
    return Results(outputs, losses, step_losses, gradients)


def _compare(module: torch.nn.Module, file: Results, single: Results, double: Results) -> Agreement:
    loss = 0.0
    for what in ("outputs", "losses", "step_losses"):
        true = getattr(double, what)
        off, own = (float(np.abs(getattr(each, what) - true).max()) for each in (file, single))
        if not off <= max(LOSS_TOLERANCE * max(float(np.abs(true).max()), 1.0), ROUNDING_FACTOR * own):
            raise BadData(f"the file's {what.replace('_', ' ')} differ from torch's by {off:.1e}; it is not written")
        loss = max(loss, off) if what != "outputs" else loss
    floor = GRADIENT_FLOOR * max(float(np.abs(each).max()) for each in double.gradients.values())
    shares = [_gradient_error(module, name, file, single, double, floor) for name in double.gradients]
    return Agreement(loss, max(shares))


def _gradient_error(
    module: torch.nn.Module, name: str, file: Results, single: Results, double: Results, floor: float
) -> float:
    """Return the relative error of one tensor's gradient."""
    true = double.gradients[name]
    off, own = (float(np.abs(each.gradients[name] - true).max()) for each in (file, single))
    largest = float(np.abs(true).max())
    if not off <= max(GRADIENT_TOLERANCE * largest + floor, ROUNDING_FACTOR * own):
        layer, _, tensor = name.rpartition(".")
        raise BadData(
            f"layer {layer_name(layer, module.get_submodule(layer))}: the gradient of its {tensor} differs from "
            f"torch's by {off:.1e}, where its largest is {largest:.1e}; the file is not written"
        )
    return off / (largest + floor / GRADIENT_TOLERANCE)
