"""The computation of metrics from a model's outputs, in pieces that any number of workers can compute.

The part of a piece holds sums, counts or, for metrics of all samples at once, scores and labels. Parts are combined in
the order of the pieces, so the value does not depend on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedbalancer.core.errors import BadData, FedBalancerError
from fedbalancer.core.metrics import ACCURACY_NAME, LOSS_NAME, Metric, is_torchmetric
from fedbalancer.core.types import Evaluation, FloatArray
from fedbalancer.core.types.round import total
from fedbalancer.training.tensors import class_axis, count_correct, count_labelled, find_logits

if TYPE_CHECKING:
    import torch

Part = tuple[Any, ...]
"""What one metric keeps of one piece: numbers or arrays."""
Piece = tuple[float, int, tuple[Part, ...]]
"""A part of an evaluation: sum of the losses, number of samples, and the part of every metric."""


@dataclass(frozen=True)
class Measure:
    """Computes one metric.

    Args:
        metric: The metric.
        part: Function of (outputs, labels) of a piece that returns its part.
        value: Function of all parts that returns the value.
    """

    metric: Metric
    part: Callable[[Any, Any], Part]
    value: Callable[[Sequence[Part]], float]


def make_measures(metrics: Sequence[Metric]) -> tuple[Measure, ...]:
    """Return how the metrics are computed; the loss, which every evaluation has, is left out."""
    return tuple(_make_measure(metric) for metric in metrics if metric.name != LOSS_NAME)


def _make_measure(metric: Metric) -> Measure:
    function, name = metric.function, metric.name
    if is_torchmetric(function):
        return Measure(metric, partial(_copy_both, name), partial(_update_and_compute, name, function))
    if function is not None and metric.whole:
        return Measure(metric, partial(_copy_both, name), partial(_call_once, name, function))
    if function is not None:
        return Measure(metric, partial(_call_function, name, function), _divide)
    if metric.top is not None:
        return Measure(metric, partial(_count_top, name, metric.top), _divide)
    part, value = _BUILT_IN[name]
    return Measure(metric, part, value)


def combine_pieces(measures: Sequence[Measure], pieces: Sequence[Piece]) -> Evaluation:
    """Combine all pieces of an evaluation, in their order.

    Args:
        measures: How the metrics are computed.
        pieces: The pieces.
    """
    losses, counts, parts = zip(*pieces, strict=True)
    samples = sum(counts)
    values = {
        measure.metric.name: measure.value(of_metric)
        for measure, of_metric in zip(measures, zip(*parts, strict=True), strict=True)
    }
    accuracy = values.pop(ACCURACY_NAME, math.nan)
    return Evaluation(accuracy, total(losses) / samples if samples else math.nan, samples, values)


def _divide(parts: Sequence[Part]) -> float:
    """Return the sum of the first numbers divided by the sum of the second ones."""
    added, counted = (total(column) for column in zip(*parts, strict=True))
    return added / counted if counted else math.nan


def _add(parts: Sequence[Part]) -> FloatArray:
    """Add the only array of every part."""
    return reduce(np.add, (array for (array,) in parts))


def _count_right(outputs: Any, labels: torch.Tensor) -> Part:
    return count_correct(outputs, labels), float(count_labelled(labels))


def _count_top(name: str, k: int, outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    scores, classes = _class_scores(name, outputs, labels)
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return float((best == classes[:, None]).any(dim=1).sum()), float(len(classes))


def _count_classes(outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    """Return, by class, the true positives, the predictions and the labels."""
    scores, classes = _class_scores("f1", outputs, labels)
    predicted, count = scores.argmax(dim=1), scores.shape[1]
    hits = classes[predicted == classes]
    columns = (each.bincount(minlength=count).numpy() for each in (hits, predicted, classes))
    return (np.stack([column.astype(np.float64) for column in columns]),)


def _macro_f1(parts: Sequence[Part]) -> float:
    """Return the mean F1 over the classes that appear among the labels or the predictions."""
    hits, predicted, labelled = _add(parts)
    seen = predicted + labelled > 0
    return float((2 * hits[seen] / (predicted + labelled)[seen]).mean()) if seen.any() else math.nan


def _sum_likelihood(outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    scores, classes = _class_scores("perplexity", outputs, labels)
    likelihood = scores.double().log_softmax(dim=1)[range(len(classes)), classes]
    return -float(likelihood.sum()), float(len(classes))


def _perplexity(parts: Sequence[Part]) -> float:
    mean = _divide(parts)
    return math.exp(mean) if mean < math.log(1e300) else math.inf


def _probabilities(outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    scores, classes = _class_scores("auroc", outputs, labels)
    return scores.softmax(dim=1).numpy(), classes.numpy()


def _auroc(parts: Sequence[Part]) -> float:
    """Return the area under the ROC curve; with several classes, the mean over classes of one against the rest."""
    scores, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    classes = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    areas = [area_under_roc(scores[:, each], labels == each) for each in classes]
    known = [area for area in areas if not math.isnan(area)]
    return total(known) / len(known) if known else math.nan


def area_under_roc(scores: NDArray[Any], positive: NDArray[np.bool_]) -> float:
    """Return the probability that a positive sample has a higher score than a negative one; ties count half.

    Args:
        scores: Score of every sample.
        positive: Whether a sample is positive.

    Returns:
        The area; NaN if all samples are positive, or none.

    Example:
        >>> area_under_roc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
        0.875
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # of equal scores, the mean rank
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _sum_errors(power: int, name: str, outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    errors = (_like_labels(name, outputs, labels) - labels.double()).abs() ** power
    return float(errors.sum()), float(errors.numel())


def _sum_squares(outputs: torch.Tensor, labels: torch.Tensor) -> Part:
    """Return, by column of the labels: count, mean, squared distance from the mean, and squared error."""
    truth = labels.double().reshape(len(labels), -1)
    errors = (_like_labels("r2", outputs, labels).reshape(truth.shape) - truth) ** 2
    mean = truth.mean(dim=0)
    return float(len(truth)), mean.numpy(), ((truth - mean) ** 2).sum(dim=0).numpy(), errors.sum(dim=0).numpy()


def _r2(parts: Sequence[Part]) -> float:
    """Return 1 - squared error / squared distance from the mean, averaged over the columns of the labels."""
    count, mean, spread, errors = parts[0]
    for more, other_mean, other_spread, other_errors in parts[1:]:
        both, gap = count + more, other_mean - mean
        spread = spread + other_spread + gap**2 * (count * more / both)
        mean, count, errors = mean + gap * (more / both), both, errors + other_errors
    known = spread > 0
    return float((1 - errors[known] / spread[known]).mean()) if known.any() else math.nan


_BUILT_IN: Mapping[str, tuple[Callable[[Any, Any], Part], Callable[[Sequence[Part]], float]]] = {
    ACCURACY_NAME: (_count_right, _divide),
    "f1": (_count_classes, _macro_f1),
    "auroc": (_probabilities, _auroc),
    "perplexity": (_sum_likelihood, _perplexity),
    "mae": (partial(_sum_errors, 1, "mae"), _divide),
    "mse": (partial(_sum_errors, 2, "mse"), _divide),
    "rmse": (partial(_sum_errors, 2, "rmse"), lambda parts: math.sqrt(_divide(parts))),
    "r2": (_sum_squares, _r2),
}


def _class_scores(name: str, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one row of class scores per label, and the labels that are classes; other labels mark masked places.

    The classes of sequences are in the last dimension of the outputs or, like those of images, in the second one. A
    single score per label is the logit of class 1.
    """
    import torch

    if labels.is_floating_point():
        raise BadData(f"the metric {name!r} needs classes as labels, not floats")
    outputs = _scores(name, outputs)
    if outputs.shape in (labels.shape, (*labels.shape, 1)):
        logit = outputs.reshape(-1)
        scores = torch.stack([torch.zeros_like(logit), logit], dim=1)
    elif outputs.shape[:-1] == labels.shape and class_axis(labels) == outputs.ndim - 1:
        scores = outputs.reshape(-1, outputs.shape[-1])
    elif outputs.ndim == labels.ndim + 1 and outputs.shape[2:] == labels.shape[1:]:
        scores = outputs.movedim(1, -1).reshape(-1, outputs.shape[1])
    else:
        raise BadData(
            f"the metric {name!r} needs one score per class: for labels of shape {tuple(labels.shape)} the model "
            f"returns {tuple(outputs.shape)}"
        )
    classes = labels.reshape(-1)
    counted = (classes >= 0) & (classes < scores.shape[1])
    return scores[counted].float(), classes[counted]


def _like_labels(name: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the outputs in the shape of the labels, as float64."""
    outputs = _scores(name, outputs)
    if outputs.shape not in (labels.shape, (*labels.shape, 1)) and (*outputs.shape, 1) != labels.shape:
        raise BadData(
            f"the metric {name!r} needs one output per label: for labels of shape {tuple(labels.shape)} the model "
            f"returns {tuple(outputs.shape)}"
        )
    return outputs.double().reshape(labels.shape)


def _call_function(name: str, function: Callable[..., Any], outputs: Any, labels: Any) -> Part:
    """Return the sum and the count that a custom function returns."""
    result = _call(name, function, outputs, labels)
    if not isinstance(result, Mapping):
        with suppress(TypeError, ValueError):
            added, counted = result
            return float(added), float(counted)
    raise _bad_result(
        name, "two numbers: a sum and a count, such as how many samples are right, and of how many", result
    )


def _call_once(name: str, function: Callable[..., Any], parts: Sequence[Part]) -> float:
    import torch

    try:
        outputs, labels = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    except ValueError as error:
        raise BadData(f"the metric {name!r} needs all samples at once, but they differ in length") from error
    result = _call(name, function, outputs, labels)
    with suppress(TypeError, ValueError):
        return float(result)
    raise _bad_result(name, "one number", result)


def _update_and_compute(name: str, metric: Any, parts: Sequence[Part]) -> float:
    """Compute a torchmetrics metric; the given object is not changed."""
    import torch

    fresh = deepcopy(metric)
    fresh.reset()
    for arrays in parts:
        outputs, labels = map(torch.from_numpy, arrays)
        _call(
            name,
            fresh.update,
            outputs.reshape(labels.shape) if outputs.shape == (*labels.shape, 1) else outputs,
            labels,
        )
    result = fresh.compute()
    with suppress(TypeError, ValueError, RuntimeError):
        return float(result)
    raise _bad_result(name, "one number (with torchmetrics, set average='macro' or the like)", result)


def _copy_both(name: str, outputs: Any, labels: torch.Tensor) -> Part:
    return _scores(name, outputs).numpy(), labels.numpy()


def _scores(name: str, outputs: Any) -> torch.Tensor:
    """Return the scores among the outputs of a model, which may be an object with `.logits`."""
    import torch

    scores = find_logits(outputs)
    if not isinstance(scores, torch.Tensor):
        raise BadData(f"the metric {name!r} needs a tensor of outputs, not {type(scores).__name__}")
    return scores


def _call(name: str, function: Callable[..., Any], outputs: Any, labels: Any) -> Any:
    try:
        return function(outputs, labels)
    except FedBalancerError:
        raise
    except Exception as error:  # the user's code may raise anything
        reason = " ".join(str(error).split())
        raise BadData(
            f"the metric {name!r} fails on {len(labels)} samples with labels of shape {tuple(labels.shape)}: "
            f"{type(error).__name__}: {reason}"
        ) from error


def _bad_result(name: str, wanted: str, result: Any) -> BadData:
    got = f"{type(result).__name__} {str(result)[:80]!r}"
    return BadData(f"the metric {name!r} must return {wanted}; it returned {got}")
