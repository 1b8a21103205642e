"""Before any training: do the model, the loss and the data of a task fit together?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import TEST, BaseTask, MadeOnDemand, Samples, as_array, check_alike
from fedbalancer.training.flat import build
from fedbalancer.training.tensors import correct, to_tensors

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.tensors import Hits, Loss


def check_model(task: BaseTask, module: torch.nn.Module, loss: Loss, hits: Hits) -> int | None:
    """Run two samples of the first client through model, loss and metric, and check all labels that are there already.

    Returns the number of classes that the model tells apart, None if the loss is the user's own. Clients that are
    made on demand are looked at when they are made, by `check_client`.
    """
    import torch

    client = next(iter(task.clients))
    first = task.clients[client]
    check_alike({f"client {client!r}": first, TEST: task.test})
    features, labels = to_tensors((first[0][:2], first[1][:2]))
    module.eval()
    with torch.no_grad():
        try:
            outputs = module(features)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadData(f"client {client!r}: {refused(features, error)}") from error
        if callable(task.loss):
            loss(outputs, labels)
            hits(outputs, labels)
            return None
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or len(outputs) != len(labels):
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise BadData(
            f"client {client!r}: for {len(labels)} samples the model gives {got}; the cross-entropy needs "
            f"({len(labels)}, classes); give the task a loss of its own for other outputs"
        )
    classes = int(outputs.shape[1])
    if callable(task.metric):
        hits(outputs, labels)
    for where, samples in _present(task):
        check_labels(np.asarray(samples[1]), where, classes)
    return classes


def _present(task: BaseTask) -> Iterator[tuple[str, Samples]]:
    """The data that need not be made first."""
    if not isinstance(task.clients, MadeOnDemand):
        yield from ((f"client {client!r}", samples) for client, samples in task.clients.items())
    yield TEST, task.test


def check_accuracy(task: BaseTask) -> None:
    """Raise `BadData` if the model's outputs have no accuracy: then no comparison can score them."""
    if task.metric != "accuracy" or not callable(task.loss):  # the cross-entropy needs classes, which have one
        return
    import torch

    features, labels = to_tensors((task.test[0][:2], task.test[1][:2]))
    module = build(task.model).eval()
    with torch.no_grad():
        outputs = module(features)
    if not isinstance(outputs, torch.Tensor) or math.isnan(correct(outputs, labels)):
        kind = str(labels.dtype).removeprefix("torch.")
        raise BadData(
            f"task {task.name!r} has no accuracy, by which a comparison scores: its labels are {kind} of shape "
            f"{tuple(labels.shape[1:])}. Give the task metric=, a function of (outputs, labels) that returns how many "
            "samples are right and of how many"
        )


def check_client(samples: Samples, client: str, test: Samples, classes: int | None) -> Samples:
    """A client's samples as they are fetched, if they are of the test data's kind, which is the first client's."""
    samples = as_array(samples[0]), as_array(samples[1])
    where = f"client {client!r}"
    check_alike({TEST: test, where: samples})
    if classes is not None:
        check_labels(np.asarray(samples[1]), where, classes)
    return samples


def check_labels(labels: NDArray[Any], where: str, classes: int) -> None:
    """Raise `BadData` unless the labels are numbers of classes that the model has."""
    if labels.dtype.kind not in "iub" or labels.ndim != 1:
        got = f"{labels.dtype} of shape {labels.shape}"
        raise BadData(f"{where}: the cross-entropy needs one whole number per sample as labels, not {got}")
    bad = np.flatnonzero(labels >= classes)
    if len(bad):
        raise BadData(
            f"{where} has label {labels[bad[0]]} in sample {bad[0]}, but the model has {classes} outputs; "
            f"labels must be 0 to {classes - 1}, or the model needs {labels.max() + 1} outputs"
        )


def refused(features: torch.Tensor, error: Exception) -> str:
    """One line about a model that fails on a batch of features."""
    shape, kind = tuple(features.shape), str(features.dtype).removeprefix("torch.")
    reason = " ".join(str(error).split())
    return f"the model fails on {len(features)} samples of shape {shape[1:]} ({kind}): {reason}"
