"""Checks before training that the model, the loss and the data of a task fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedbalancer.core.errors import BadData
from fedbalancer.core.task import TEST, BaseTask, MadeOnDemand, Samples, check_alike, check_labels
from fedbalancer.training.tensors import build_module, count_correct, to_tensors

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.tensors import Loss, Metric


def check_model(task: BaseTask, module: torch.nn.Module, loss: Loss, metric: Metric) -> int | None:
    """Run two samples of the first client through model, loss and metric, and check all labels.

    The samples of clients that are made on demand are checked later, by `check_client`.

    Args:
        task: The task.
        module: Its model.
        loss: Its loss.
        metric: Its metric.

    Returns:
        The number of classes; None if the task has a custom loss.

    Raises:
        BadData: If they do not fit together; the message names the client.
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
            raise BadData(f"client {client!r}: {describe_failure(features, error)}") from error
        if callable(task.loss):
            loss(outputs, labels)
            metric(outputs, labels)
            return None
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or len(outputs) != len(labels):
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise BadData(
            f"client {client!r}: for {len(labels)} samples the model returns {got}; the cross-entropy needs "
            f"({len(labels)}, classes); give the task a custom loss for other outputs"
        )
    classes = int(outputs.shape[1])
    if callable(task.metric):
        metric(outputs, labels)
    for where, samples in _loaded_samples(task):
        check_labels(np.asarray(samples[1]), where, classes)
    return classes


def _loaded_samples(task: BaseTask) -> Iterator[tuple[str, Samples]]:
    """Yield all samples that are not made on demand."""
    if not isinstance(task.clients, MadeOnDemand):
        yield from ((f"client {client!r}", samples) for client, samples in task.clients.items())
    yield TEST, task.test


def check_accuracy(task: BaseTask) -> None:
    """Check that the model has an accuracy, which a comparison needs for its scores.

    Raises:
        BadData: If it has none.
    """
    if task.metric != "accuracy" or not callable(task.loss):  # the cross-entropy implies classes
        return
    import torch

    features, labels = to_tensors((task.test[0][:2], task.test[1][:2]))
    module = build_module(task.model).eval()
    with torch.no_grad():
        outputs = module(features)
    if not isinstance(outputs, torch.Tensor) or math.isnan(count_correct(outputs, labels)):
        kind = str(labels.dtype).removeprefix("torch.")
        raise BadData(
            f"task {task.name!r} has no accuracy, by which a comparison scores: its labels are {kind} of shape "
            f"{tuple(labels.shape[1:])}. Give the task metric=, a function of (outputs, labels) that returns how many "
            "samples are right and of how many"
        )


def check_no_batch_norm(module: torch.nn.Module) -> None:
    """Check that a module has no batch norms, for tasks with batch_norm = "forbid".

    Args:
        module: The module.

    Raises:
        BadData: If it has one; the message names it.
    """
    import torch

    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            raise BadData(
                f"the model has a batch norm, {name or 'model'} ({type(layer).__name__}), and batch_norm is 'forbid'; "
                "use a GroupNorm, or set batch_norm = 'average'"
            )


def describe_failure(features: torch.Tensor, error: Exception) -> str:
    """Describe in one line that a model fails on a batch."""
    shape, kind = tuple(features.shape), str(features.dtype).removeprefix("torch.")
    reason = " ".join(str(error).split())
    return f"the model fails on {len(features)} samples of shape {shape[1:]} ({kind}): {reason}"
