"""From a task's arrays and its loss to what torch works on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, UnknownName
from fedbalancer.core.task import Samples, as_array
from fedbalancer.core.types import IndexArray

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, torch.Tensor]
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Hits = Callable[[torch.Tensor, torch.Tensor], tuple[float, float]]

SHELF_BYTES = 512 * 1024**2
"""Samples that a trainer keeps ready, at most."""


def to_tensors(samples: Samples) -> Tensors:
    """Features and labels as torch works on them, all at once."""
    features, labels = stored(samples)
    return batch_of(features, slice(None)), batch_of(labels, slice(None))


def stored(samples: Samples) -> Samples:
    """Samples as they are kept: floats as float32, wider integers as int64, labels as int64 or float32. Bytes (images)
    and booleans among the features stay as small as they are until `batch_of`. What has its type already is not copied.
    """
    features, labels = map(as_array, samples)
    if features.dtype.kind == "f":
        features = features.astype(np.float32, copy=False)
    elif features.dtype != np.uint8 and features.dtype.kind != "b":
        features = features.astype(np.int64, copy=False)
    return features, labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)


def batch_of(array: NDArray[Any], rows: IndexArray | slice) -> torch.Tensor:
    """A tensor of its own of some rows of a stored array; bytes and booleans become float32."""
    import torch

    chosen = array[rows]
    if chosen.dtype in (np.uint8, np.bool_):
        chosen = chosen.astype(np.float32, order="C")
    elif isinstance(rows, slice):
        chosen = chosen.copy()
    return torch.from_numpy(np.ascontiguousarray(chosen))


class Shelf:
    """The stored samples of the clients that were used last; older ones are let go when there are too many bytes."""

    def __init__(self, make: Callable[[str], Samples], most_bytes: int = SHELF_BYTES) -> None:
        self._make = make
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Samples] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: str) -> Samples:
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        made = self._kept[client] = stored(self._make(client))
        self._bytes += _bytes(made)
        while self._bytes > self._most_bytes and len(self._kept) > 1:
            self._bytes -= _bytes(self._kept.popitem(last=False)[1])
        return made


def _bytes(samples: Samples) -> int:
    return sum(part.nbytes for part in samples)


def per_sample_loss(loss: str | Callable[[Any, Any], Any]) -> Loss:
    """The task's loss as a function of outputs and labels to one value per sample."""
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
            raise BadData(f"the loss must give one value per sample: a tensor of shape ({len(labels)},), not {got}")
        return losses

    return values


def hits_of(metric: str | Callable[[Any, Any], tuple[float, float]]) -> Hits:
    """The task's metric as a function of outputs and labels to (how many are right, of how many)."""
    if callable(metric):
        return lambda outputs, labels: _two_numbers(metric(outputs, labels))
    if metric != "accuracy":
        raise UnknownName("metric", metric, ["accuracy"])
    return lambda outputs, labels: (correct(outputs, labels), float(len(labels)))


def _two_numbers(result: Any) -> tuple[float, float]:
    """Check that a custom metric returned two numbers."""
    if not isinstance(result, Mapping):
        with suppress(TypeError, ValueError):
            right, counted = result
            return float(right), float(counted)
    raise BadData(
        "the metric must return two numbers: how many samples are right, and of how many; "
        f"it returned {type(result).__name__} {str(result)[:80]!r}"
    )


def correct(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """How many samples are classified right (labels of several parts count by their share); NaN without classes."""
    if labels.is_floating_point() or outputs.ndim != labels.ndim + 1:
        return float("nan")
    right = (outputs.argmax(dim=1) == labels).double()
    return float(right.reshape(len(labels), -1).mean(dim=1).sum())
