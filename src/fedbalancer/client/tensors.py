"""From a task's arrays and its loss to what torch works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.errors import BadData, UnknownName
from fedbalancer.tasks.task import Samples

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, torch.Tensor]
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def to_tensors(samples: Samples) -> Tensors:
    """Features and labels as tensors. Floats, bytes (images) and booleans among the features become float32, wider
    integers (tokens) int64; labels become int64 or float32. Memory is shared where the type is right already."""
    features, labels = (np.asarray(part) for part in samples)
    tokens = features.dtype.kind in "iu" and features.dtype != np.uint8
    return _tensor(features, np.int64 if tokens else np.float32), _tensor(
        labels, np.float32 if labels.dtype.kind == "f" else np.int64
    )


def _tensor(array: NDArray[Any], dtype: type[np.generic]) -> torch.Tensor:
    import torch

    array = np.ascontiguousarray(array, dtype=dtype)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def per_sample_loss(loss: str | Callable[[Any, Any], Any]) -> Loss:
    """The task's loss as a function of outputs and labels to one value a sample."""
    import torch

    if isinstance(loss, str) and loss != "cross_entropy":
        raise UnknownName("loss", loss, ["cross_entropy"])

    def values(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if callable(loss):
            losses = loss(outputs, labels)
        else:
            losses = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
        if not isinstance(losses, torch.Tensor) or losses.shape != (len(labels),):
            got = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise BadData(f"the loss must give one value a sample: a tensor of shape ({len(labels)},), not {got}")
        return losses

    return values


def hits_of(metric: str | Callable[[Any, Any], tuple[float, float]]) -> Callable[[Any, Any], tuple[float, float]]:
    """The task's metric as a function of outputs and labels to (how many are right, of how many)."""
    if callable(metric):
        return metric
    if metric != "accuracy":
        raise UnknownName("metric", metric, ["accuracy"])
    return lambda outputs, labels: (correct(outputs, labels), float(len(labels)))


def correct(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """How many samples are classified right (labels of several parts count by their share); NaN without classes."""
    if labels.is_floating_point() or outputs.ndim != labels.ndim + 1:
        return float("nan")
    right = (outputs.argmax(dim=1) == labels).double()
    return float(right.reshape(len(labels), -1).mean(dim=1).sum())
