"""Checks before training that the model, the loss and the data of a task fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData
from fedbalancer.core.metrics import ACCURACY_NAME, Metric
from fedbalancer.core.samples import count_rows, describe, match_ragged, take
from fedbalancer.core.task import TEST, BaseTask, MadeOnDemand, Samples, check_alike, check_labels
from fedbalancer.training.tensors import (
    build_module,
    call_model,
    class_axis,
    count_correct,
    find_logits,
    has_labels,
    to_tensors,
)

if TYPE_CHECKING:
    import torch

    from fedbalancer.training.metrics import Measure
    from fedbalancer.training.tensors import Loss


def check_model(task: BaseTask, module: torch.nn.Module, loss: Loss, measures: Sequence[Measure]) -> int | None:
    """Run two samples of the first client through model, loss and metrics, and check all labels.

    The samples of clients that are made on demand are checked later, by `check_client`.

    Args:
        task: The task.
        module: Its model.
        loss: Its loss.
        measures: Its metrics.

    Returns:
        The number of classes; None if the task has a custom loss.

    Raises:
        BadData: If they do not fit together; the message names the client.
    """
    import torch

    client = next(iter(task.clients))
    first = task.samples(client)
    first = match_ragged(first[0], task.test[0]), match_ragged(first[1], task.test[1])
    check_alike({f"client {client!r}": first, TEST: task.test})
    features, labels = to_tensors((take(first[0], slice(2)), first[1][:2]))
    module.eval()
    with torch.no_grad():
        try:
            outputs = call_model(module, features, task.forward)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise BadData(f"client {client!r}: {describe_failure(features, error)}") from error
        if callable(task.loss) or not has_labels(labels):
            loss(outputs, labels)
            _check_metrics(measures, outputs, labels)
            return None
    classes = _count_classes(f"client {client!r}", find_logits(outputs), labels)
    _check_metrics(measures, outputs, labels)
    for where, samples in _loaded_samples(task):
        check_labels(samples[1], where, classes)
    return classes


def _check_metrics(measures: Sequence[Measure], outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Compute every metric of a few samples, so that one that does not fit is reported before training."""
    for measure in measures:
        measure.part(outputs, labels)


def _count_classes(where: str, outputs: Any, labels: torch.Tensor) -> int:
    """Return the number of classes that a model scores, for the cross-entropy."""
    import torch

    rows, steps = len(labels), tuple(labels.shape[1:])
    is_tensor = isinstance(outputs, torch.Tensor) and len(outputs) == rows
    if is_tensor and outputs.ndim == 2 and (labels.ndim != 1 or labels.is_floating_point()):
        got = f"{str(labels.dtype).removeprefix('torch.')} of shape {steps} per sample"
        raise BadData(f"{where}: the cross-entropy needs one whole number per sample as labels, not {got}")
    if is_tensor and outputs.ndim == labels.ndim + 1:
        at = class_axis(labels)
        if tuple(outputs.shape[:at]) + tuple(outputs.shape[at + 1 :]) == tuple(labels.shape):
            return int(outputs.shape[at])
    got = str(tuple(outputs.shape)) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    needed = ", ".join(str(side) for side in (rows, *steps, "classes"))
    if labels.ndim > 2:
        needed = ", ".join(str(side) for side in (rows, "classes", *steps))
    raise BadData(
        f"{where}: for {rows} samples the model returns {got}; the cross-entropy needs ({needed}); "
        "give the task a custom loss, or forward= that returns such scores"
    )


def _loaded_samples(task: BaseTask) -> Iterator[tuple[str, Samples]]:
    """Yield all samples that are not made on demand."""
    if not isinstance(task.clients, MadeOnDemand):
        yield from ((f"client {client!r}", samples) for client, samples in task.clients.items())
    yield TEST, task.test


def check_accuracy(task: BaseTask, metric: Metric) -> None:
    """Check that a task that is scored by its accuracy has one.

    Args:
        task: The task.
        metric: The metric that scores use.

    Raises:
        BadData: If it has none.
    """
    if metric.name != ACCURACY_NAME or metric.function is not None or not callable(task.loss):
        return  # the cross-entropy implies classes
    import torch

    features, labels = to_tensors((take(task.test[0], slice(2)), task.test[1][:2]))
    module = build_module(task.model).eval()
    with torch.no_grad():
        outputs = call_model(module, features, task.forward)
    if math.isnan(count_correct(outputs, labels)):
        kind = str(labels.dtype).removeprefix("torch.")
        raise BadData(
            f"task {task.name!r} has no accuracy, by which a comparison scores: its labels are {kind} of shape "
            f"{tuple(labels.shape[1:])}. Give the task metric='loss' or 'mae', or a function of (outputs, labels) that "
            "returns how many samples are right and of how many"
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


def describe_failure(features: Any, error: Exception) -> str:
    """Describe in one line that a model fails on a batch.

    Args:
        features: The batch: a tensor, or a dictionary or tuple of tensors.
        error: What the model raised.
    """
    shapes = describe(features, lambda batch: f"{tuple(batch.shape[1:])} ({str(batch.dtype).removeprefix('torch.')})")
    reason = " ".join(str(error).split())
    return f"the model fails on {count_rows(features)} samples of shape {shapes}: {reason}"
