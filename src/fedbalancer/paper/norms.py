"""Gradient norms of single samples: how much each would move the model by itself.

`torch.func` gives the gradients of many samples at once. Models that it cannot take (an LSTM has no rule for it) are
asked sample by sample, and of fewer samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbalancer.client.flat import FlatModule
from fedbalancer.client.tensors import batch_of, per_sample_loss
from fedbalancer.task import Samples, Task
from fedbalancer.types import FloatArray, Weights

GRADIENT_BYTES = 2**27
"""Memory for the gradients of the samples that are taken at once."""
TOP_SHARE = 0.05
"""The highest norms are left out, as in the paper: they are of noisy samples."""


class SampleNorms:
    """The norms of any samples of a task under any weights."""

    def __init__(self, task: Task) -> None:
        import torch

        self._flat = FlatModule(task.model)
        self._flat.module.eval()
        self._loss = per_sample_loss(task.loss)
        self.at_once = True
        self._torch = torch

    def __call__(self, weights: Weights, samples: Samples) -> FloatArray:
        """The Euclidean norm of the gradient of each sample's loss by all parameters."""
        self._flat.load(weights)
        features, labels = batch_of(samples[0], slice(None)), batch_of(samples[1], slice(None))
        if labels.dtype.is_floating_point is False:
            labels = labels.long()
        if self.at_once:
            try:
                return self._all_at_once(features, labels)
            except (RuntimeError, NotImplementedError):
                self.at_once = False
        return self._one_by_one(features, labels)

    def _all_at_once(self, features: Any, labels: Any) -> FloatArray:
        torch, module = self._torch, self._flat.module
        parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        others = dict(module.named_buffers())

        def loss(values: dict[str, Any], sample: Any, label: Any) -> Any:
            outputs = torch.func.functional_call(module, (values, others), (sample[None],))
            return self._loss(outputs, label[None])[0]

        def norm(sample: Any, label: Any) -> Any:
            gradients = torch.func.grad(loss)(parameters, sample, label)
            return torch.stack([gradient.pow(2).sum() for gradient in gradients.values()]).sum().sqrt()

        size = 4 * sum(p.numel() for p in parameters.values())
        chunk = max(1, min(256, GRADIENT_BYTES // size))
        return np.asarray(torch.func.vmap(norm, chunk_size=chunk)(features, labels).numpy(), dtype=np.float64)

    def _one_by_one(self, features: Any, labels: Any) -> FloatArray:
        torch, module = self._torch, self._flat.module
        parameters = [p for p in module.parameters() if p.requires_grad]
        norms = []
        for sample, label in zip(features, labels, strict=True):
            loss = self._loss(module(sample[None]), label[None])[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            squares = [gradient.pow(2).sum() for gradient in gradients if gradient is not None]
            norms.append(float(torch.stack(squares).sum().sqrt()))
        return np.array(norms)


def scaled(norms: FloatArray) -> FloatArray:
    """The norms of a round in ascending order, without the top 5 %, scaled to 0 to 1 as in the paper.

    >>> scaled(np.array([4.0, 2.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    kept = np.sort(norms)[: max(1, int(np.ceil(len(norms) * (1 - TOP_SHARE))))]
    width = kept[-1] - kept[0]
    return np.asarray((kept - kept[0]) / width if width > 0 else np.zeros_like(kept))
