"""Metrics: what a model is evaluated by, under which name, and whether higher or lower values are better."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedbalancer.core.errors import BadSetting, UnknownName

ACCURACY_NAME, LOSS_NAME = "accuracy", "loss"
"""Metrics with fixed columns in the tables."""
DIRECTIONS: Mapping[str, bool] = {
    ACCURACY_NAME: True, "f1": True, "auroc": True, "r2": True, LOSS_NAME: False, "perplexity": False, "mae": False,
    "mse": False, "rmse": False,
}  # fmt: skip
"""The built-in metrics, and whether higher values are better. `top5` and the like are built in as well."""
RESERVED = frozenset({
    "round", "start_s", "clock_s", "schedule", "client_mean", "client_std", "client_worst_decile",
    "client_best_decile", "tested_clients", "client", "samples", "device", "tested_on", "selected", "task", "method",
    "seed",
})  # fmt: skip
"""Names of other columns beside the metrics."""
_TITLES = {"f1": "F1", "auroc": "AUROC", "r2": "R²", "mae": "MAE", "mse": "MSE", "rmse": "RMSE"}
_TOP = re.compile(r"top([1-9]\d*)")
_NAME = re.compile(r"[A-Za-z]\w{0,59}", re.ASCII)


@dataclass(frozen=True)
class Metric:
    """A metric: its name, how it is computed, and its direction.

    The value of a function that returns a sum and a count is the sum divided by the count over all test samples, which
    is exact for any number of workers. Use `whole` for a metric that is not a mean over samples.

    Args:
        name: Name of the metric and of its column.
        function: Function of (outputs, labels) that returns a sum and a count. It can also be a `torchmetrics.Metric`,
            its class, or a partial of its class. None: the built-in metric of this name.
        higher_is_better: Whether higher values are better. Default: as usual for a built-in name or a torchmetrics
            metric, otherwise True.
        whole: Call the function once, with the outputs and labels of all samples; it returns the value.

    Raises:
        BadSetting: If the name cannot be a column, or the function is not a function.
        UnknownName: If there is no function and no built-in metric of this name.

    Example:
        >>> Metric("mae").higher_is_better, Metric("top5").title
        (False, 'top-5 accuracy')
        >>> near = Metric("near", lambda outputs, labels: (float(((outputs - labels) ** 2 < 1).sum()), len(labels)))
        >>> near.name, near.higher_is_better
        ('near', True)
    """

    name: str
    function: Callable[..., Any] | None = field(default=None, compare=False)
    higher_is_better: bool | None = None
    whole: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name in RESERVED:
            raise BadSetting(
                f"a metric cannot be named {self.name!r}: use letters, digits and '_', and no name of another column"
            )
        if self.function is None and not is_built_in(self.name):
            raise UnknownName("metric", self.name, [*DIRECTIONS, "top5"])
        object.__setattr__(self, "function", make_torchmetric(self.function))
        if self.function is not None and not callable(self.function):
            raise BadSetting(f"metric {self.name!r} needs a function of (outputs, labels), not {self.function!r}")
        if self.function is not None and self.name == LOSS_NAME:
            raise BadSetting(
                "the metric 'loss' is the task's loss; give the task loss=, or name the metric differently"
            )
        if self.higher_is_better is None:
            declared = getattr(self.function, "higher_is_better", None)
            usual = DIRECTIONS.get(self.name, True)
            object.__setattr__(self, "higher_is_better", usual if declared is None else bool(declared))
        elif self.function is None and self.higher_is_better is not DIRECTIONS.get(self.name, True):
            raise BadSetting(f"higher_is_better = {self.higher_is_better} is wrong for the metric {self.name!r}")

    @property
    def title(self) -> str:
        """The name in texts and on axes."""
        top = _TOP.fullmatch(self.name)
        return f"top-{top[1]} accuracy" if top else _TITLES.get(self.name, self.name)

    @property
    def heading(self) -> str:
        """The title with a capital letter.

        Example:
            >>> Metric("accuracy").heading, Metric("top5").heading, Metric("r2").heading
            ('Accuracy', 'Top-5 accuracy', 'R²')
        """
        return self.title[0].upper() + self.title[1:]

    @property
    def sign(self) -> int:
        """1 if higher values are better, otherwise -1: a value times the sign is better if it is higher."""
        return 1 if self.higher_is_better else -1

    @property
    def is_share(self) -> bool:
        """Whether the values are between 0 and 1: the built-in accuracy, top-k accuracy, F1 and AUROC."""
        return self.function is None and (self.name in (ACCURACY_NAME, "f1", "auroc") or self.top is not None)

    @property
    def top(self) -> int | None:
        """The k of a top-k accuracy."""
        match = _TOP.fullmatch(self.name)
        return int(match[1]) if match else None

    def share_of(self, value: float, share: float) -> float:
        """Return the target that is a share of a final value; a share below 1 is easier to reach than the value.

        Args:
            value: The final value.
            share: The share.

        Example:
            >>> ACCURACY.share_of(0.8, 0.5), LOSS.share_of(0.8, 0.5), Metric("r2").share_of(-0.8, 0.5)
            (0.4, 1.6, -1.6)
        """
        return value * share if (value > 0) == self.higher_is_better else value / share

    def check_target(self, value: float) -> None:
        """Check that a value can be a target.

        Args:
            value: The value.

        Raises:
            BadSetting: If the metric cannot have the value.

        Example:
            >>> ACCURACY.check_target(0.8), LOSS.check_target(1.5)
            (None, None)
        """
        if not math.isfinite(value) or (self.is_share and not 0 < value <= 1):
            right = "a value of {} above 0 and at most 1; 80% is 0.8" if self.is_share else "a finite value of {}"
            raise BadSetting(f"target = {value:g} must be {right.format(self.title)}")

    @property
    def plain(self) -> Metric:
        """The metric without its function, so that it can be sent to another process."""
        return Metric.from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return name and direction, as manifests record them."""
        return {"name": self.name, "higher_is_better": self.higher_is_better}

    @classmethod
    def from_json(cls, content: object) -> Metric:
        """Return the metric that a manifest records, without its function; the accuracy if it records none.

        Args:
            content: The values in the manifest.

        Example:
            >>> Metric.from_json({"name": "dice", "higher_is_better": True}).name, Metric.from_json(None).name
            ('dice', 'accuracy')
        """
        if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
            return ACCURACY
        recorded = cls.__new__(cls)
        values = {"name": content["name"], "higher_is_better": content.get("higher_is_better") is not False}
        for name, value in {**values, "function": None, "whole": False}.items():
            object.__setattr__(recorded, name, value)
        return recorded


def is_built_in(name: str) -> bool:
    """Return whether a name is that of a built-in metric.

    Example:
        >>> is_built_in("f1"), is_built_in("top5"), is_built_in("dice")
        (True, True, False)
    """
    return name in DIRECTIONS or _TOP.fullmatch(name) is not None


OneMetric = str | Metric | Callable[..., Any]
"""A metric as users give it: a name, a `Metric`, a `torchmetrics.Metric`, or a function that returns the number of
correct answers and their possible number."""
Metrics = OneMetric | Sequence[OneMetric]
"""One or several metrics as users give them; the first is the main one."""


def read_metrics(given: Metrics | None, are_classes: bool = True) -> tuple[Metric, ...]:
    """Return the metrics that a user gave, the main one first.

    Args:
        given: The metrics. None: the accuracy if the labels are classes, otherwise the loss.
        are_classes: Whether the labels can be classes.

    Raises:
        BadSetting: If something is not a metric, or a name appears twice.
        UnknownName: If there is no metric of this name.

    Example:
        >>> [metric.name for metric in read_metrics(["f1", "accuracy"])], read_metrics(None, False)[0].name
        (['f1', 'accuracy'], 'loss')
    """
    if given is None:
        return (ACCURACY if are_classes else LOSS,)
    several = isinstance(given, Sequence) and not isinstance(given, str)
    metrics = tuple(_read_metric(each) for each in (given if several else (given,)))  # type: ignore[union-attr]
    names = [metric.name for metric in metrics]
    if not names:
        raise BadSetting("metric is empty; give at least one metric, such as 'accuracy'")
    for name in names:
        if names.count(name) > 1:
            raise BadSetting(
                f"the metric {name!r} appears twice; give one of them another name with fedbalancer.Metric"
            )
    return metrics


def _read_metric(given: object) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        return Metric(given)
    given = make_torchmetric(given)
    if is_torchmetric(given):
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(given).__name__).lower()
        if given.higher_is_better is None:  # type: ignore[attr-defined]
            raise BadSetting(
                f"{type(given).__name__} does not say whether higher is better; give "
                f"fedbalancer.Metric({name!r}, ..., higher_is_better=True or False)"
            )
        return Metric(name, given)  # type: ignore[arg-type]
    if callable(given):
        return Metric(ACCURACY_NAME, given)
    raise BadSetting(
        f"metric = {given!r} must be a name ({', '.join(DIRECTIONS)}, top5), a function of (outputs, labels), a "
        "fedbalancer.Metric or a torchmetrics.Metric"
    )


def is_torchmetric(value: object) -> bool:
    """Return whether a value is a `torchmetrics.Metric`; torchmetrics is not imported."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def make_torchmetric(value: Any) -> Any:
    """Return an object of a class of torchmetrics, or of a partial of one; any other value unchanged."""
    made = value.func if isinstance(value, partial) else value
    torchmetrics = sys.modules.get("torchmetrics")
    is_class = torchmetrics is not None and isinstance(made, type) and issubclass(made, torchmetrics.Metric)
    return value() if is_class else value


def choose_metric(metrics: Sequence[Metric], name: str | None) -> Metric:
    """Return the metric that targets and scores use.

    Args:
        metrics: The metrics of a task, the main one first.
        name: Name of the metric. None: the main one.

    Raises:
        UnknownName: If the task has no metric of this name. Every task has the loss.
    """
    by_name = {metric.name: metric for metric in (*metrics, LOSS)}
    if name is None:
        return metrics[0]
    if name not in by_name:
        raise UnknownName("metric of this task", name, by_name)
    return by_name[name]


ACCURACY = Metric(ACCURACY_NAME)
LOSS = Metric(LOSS_NAME)
