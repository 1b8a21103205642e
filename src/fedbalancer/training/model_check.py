"""Checks before training that the model, the loss and the data of a task fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadData, FedBalancerError
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
        except FedBalancerError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise BadData(f"client {client!r}: {describe_failure(features, error)}") from error
        if callable(task.loss) or not has_labels(labels):
            _check_loss(loss, outputs, labels)
            _check_metrics(measures, outputs, labels)
            return None
    classes = _count_classes(f"client {client!r}", find_logits(outputs), labels)
    _check_metrics(measures, outputs, labels)
    for where, samples in _loaded_samples(task):
        check_labels(samples[1], where, classes)
    return classes


def _check_loss(loss: Loss, outputs: Any, labels: torch.Tensor) -> None:
    """Compute the loss of a few samples, so that one that does not fit is reported before training."""
    try:
        loss(outputs, labels)
    except FedBalancerError:
        raise
    except Exception as error:  # the user's code may raise anything
        kind = f"{_type(labels)} of shape {tuple(labels.shape)}"
        raise BadData(f"the loss fails on {_kind(outputs)} and labels, {kind}: {_reason(error)}") from error


def _kind(outputs: Any) -> str:
    """Describe what a model returns."""
    scores = find_logits(outputs)
    return f"outputs of shape {tuple(scores.shape)}" if hasattr(scores, "shape") else type(outputs).__name__


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_metrics(measures: Sequence[Measure], outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Compute every metric of a few samples, so that one that does not fit is reported before training."""
    for measure in measures:
        measure.part(outputs, labels)


def _count_classes(where: str, outputs: Any, labels: torch.Tensor) -> int:
    """Return the number of classes that a model scores, for the cross-entropy."""
    import torch

    rows, steps = len(labels), tuple(labels.shape[1:])
    is_tensor = isinstance(outputs, torch.Tensor) and outputs.ndim > 0 and len(outputs) == rows
    if is_tensor and outputs.ndim == 2 and (labels.ndim != 1 or labels.is_floating_point()):
        got = f"{_type(labels)}{f' of shape {steps} per sample' if steps else ''}"
        needs = f"{where}: the cross-entropy needs one whole number per sample as labels, not {got}"
        raise BadData(f"{needs}; {_label_advice(labels, int(outputs.shape[1]))}")
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


def _label_advice(labels: torch.Tensor, classes: int) -> str:
    """Return how to convert labels that are not one whole number per sample."""
    if labels.ndim == 1:
        return "convert classes with labels.astype(int), or give the task a loss for floats"
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "use labels[:, 0]"
    if labels.ndim == 2 and labels.shape[1] == classes:
        return "convert one-hot labels with labels.argmax(axis=1), or give the task a custom loss"
    return "give the task a custom loss, or a model that returns scores for each of them"


def _loaded_samples(task: BaseTask) -> Iterator[tuple[str, Samples]]:
    """Yield all samples that are not made on demand."""
    if not isinstance(task.clients, MadeOnDemand):
        yield from ((f"client {client!r}", samples) for client, samples in task.clients.items())
    yield TEST, task.test
    if not isinstance(task.client_tests, MadeOnDemand):
        for client, samples in task.client_tests.items():
            yield f"the test data of client {client!r}", samples


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
    shapes = describe(features, lambda batch: f"{tuple(batch.shape[1:])} ({_type(batch)})")
    advice = next((text for (kind, sign), text in _ADVICE.items() if kind in shapes and sign in str(error)), "")
    return f"the model fails on {count_rows(features)} samples of shape {shapes}: {_reason(error)}{advice}"


_WHOLE = "; whole numbers reach the model as int64: give it floats, or convert them in the model with x.float()"
_TOKENS = "; an embedding needs whole numbers: convert them with x.astype(int)"
_ADVICE = {
    ("int64", "dtype"): _WHOLE,
    ("int64", "Long"): _WHOLE,
    ("int64", "index out of range"): "; a value is not below the number of rows of an embedding",
    ("float32", "Long, Int"): _TOKENS,
}
"""What to do, by the type of a feature and a word of torch's message."""


def _reason(error: Exception) -> str:
    """Return an error of the user's code on one line."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return text if isinstance(error, RuntimeError | TypeError | ValueError) and text else f"{kind}: {text}"
