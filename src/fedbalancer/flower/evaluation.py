"""Evaluation on clients: which clients evaluate, and how their metrics are combined."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.metrics import ACCURACY as ACCURACY_METRIC
from fedbalancer.core.metrics import LOSS as LOSS_METRIC
from fedbalancer.core.metrics import RESERVED, Metric
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Evaluation
from fedbalancer.flower.compat import Message, MetricRecord, RecordDict
from fedbalancer.flower.events import LogEvent
from fedbalancer.flower.messages import WEIGHT
from fedbalancer.flower.model_arrays import InvalidMessage
from fedbalancer.server.report_check import MAX_LOSS, MOST_WEIGHT, weight_limit
from fedbalancer.store.rows import ClientSpread

MOST_NAMES = 100
"""Custom metrics that a run records."""
ACCURACY, LOSS = ("accuracy", "acc"), ("loss",)
"""Words that identify the two metrics of the tables: `acc`, `eval_acc` and `test-accuracy` are an accuracy."""

CombineMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""(answers of the clients, key of their weights) -> combined metrics, as in Flower's `evaluate_metrics_aggr_fn`."""


@dataclass(frozen=True)
class Evaluators:
    """Which clients evaluate a model.

    Args:
        fraction: Fraction of the idle clients; 0 for no evaluation on clients.
        least: Smallest number of clients.
    """

    fraction: float = 0.0
    least: int = 0

    @classmethod
    def of(
        cls, federated: bool, fraction: float | None, least: int | None, without_effect: Iterable[str]
    ) -> Evaluators:
        """Combine Flower's arguments for evaluation on clients.

        Args:
            federated: `federated_evaluate` of `Strategy`.
            fraction: `fraction_evaluate`.
            least: `min_evaluate_nodes`.
            without_effect: Names of other arguments that need evaluation on clients.

        Raises:
            BadSetting: An argument is out of range, or would have no effect.
        """
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadSetting(f"fraction_evaluate = {fraction} must be from 0 to 1")
        if least is not None and least < 0:
            raise BadSetting(f"min_evaluate_nodes = {least} must be at least 0")
        if federated and fraction == 0:
            raise BadSetting("federated_evaluate=True and fraction_evaluate = 0 contradict each other")
        names = [*without_effect, *([] if least is None else ["min_evaluate_nodes"])]
        if not federated and fraction is None and names:
            raise BadSetting(f"{names[0]} would have no effect: clients evaluate only with federated_evaluate=True")
        share = (1.0 if federated else 0.0) if fraction is None else float(fraction)
        return cls(share, (least or 0) if share else 0)

    def draw(self, clients: Sequence[str], seed: int, round_number: int) -> list[str]:
        """Draw the clients that evaluate after a round, sorted by id."""
        count = min(max(int(len(clients) * self.fraction), self.least), len(clients))
        rng = stream(seed, "evaluate", round_number)
        return sorted(clients[place] for place in rng.choice(len(clients), count, replace=False).tolist())


class Target:
    """A value of a metric at which a run ends.

    Args:
        metric: The metric, or the name of a built-in one.
        value: The value.

    Raises:
        BadSetting: If the metric cannot have the value.
        UnknownName: If no built-in metric has the name.

    >>> Target("loss", 0.5).is_reached({"eval_loss": 0.4})
    True
    """

    def __init__(self, metric: str | Metric, value: float) -> None:
        self.metric = Metric(metric) if isinstance(metric, str) else metric
        self.metric.check_target(value)
        self.value = value

    def __str__(self) -> str:
        return f"{self.metric.title} {self.value:g}"

    def is_reached(self, metrics: Mapping[str, Any]) -> bool:
        """Whether an evaluation reaches the value.

        Args:
            metrics: The metrics of the evaluation.
        """
        return self.metric.sign * to_evaluation(metrics).value(self.metric.name) >= self.metric.sign * self.value


class MetricNames:
    """Limits the names of custom metrics in a run to `MOST_NAMES`.

    Names come from clients, so their number must be bounded. Of new names, those that most clients send are admitted
    first, so that one client cannot exclude the metrics of the others.

    Args:
        log_event: Called once when names are refused.
    """

    def __init__(self, log_event: LogEvent) -> None:
        self._log_event, self.names = log_event, set[str]()
        self._has_logged = False

    def filter_metrics(self, contents: Sequence[RecordDict]) -> list[RecordDict]:
        """Admit new names and return the clients' metrics without refused ones."""
        senders = Counter(name for content in contents for name in _names(content))
        new = sorted((name for name in senders if name not in self.names), key=lambda name: (-senders[name], name))
        room = MOST_NAMES - len(self.names)
        self.names |= set(new[:room])
        refused = set(new[room:])
        if refused and not self._has_logged:
            self._has_logged = True
            self._log_event("metrics not recorded", names=sorted(refused)[:3], count=len(refused), most=MOST_NAMES)
        return [_without(content, refused) for content in contents]


def _names(content: RecordDict) -> set[str]:
    return {name for record in content.metric_records.values() for name in record if name != WEIGHT}


def _without(content: RecordDict, refused: set[str]) -> RecordDict:
    if not refused & _names(content):
        return content
    records = {
        kind: MetricRecord({name: value for name, value in record.items() if name not in refused})
        for kind, record in content.metric_records.items()
    }
    return RecordDict({**content, **records})


def combine_metrics(
    answers: Iterable[Message],
    fault: Callable[[int, str], None],
    names: MetricNames,
    combine: CombineMetrics | None = None,
) -> dict[str, Any]:
    """Combine the metrics of the clients that answered.

    Args:
        answers: The clients' replies.
        fault: Called with the node and the reason of every unusable reply.
        names: Limits the recorded metrics.
        combine: Combines the metrics. Default: `weighted_mean`.

    Returns:
        The combined metrics and the number of samples; empty without a usable reply.
    """
    usable = []
    for answer in answers:
        try:
            usable.append(_check_answer(answer))
        except InvalidMessage as problem:
            fault(answer.metadata.src_node_id, str(problem))
    if not usable:
        return {}
    usable = names.filter_metrics(usable)
    combined = dict((combine or weighted_mean)(usable, WEIGHT))
    return combined | {WEIGHT: int(sum(_metrics(content)[WEIGHT] for content in usable))}


def weighted_mean(contents: list[RecordDict], key: str) -> MetricRecord:
    """Average every numeric metric over the clients that have it, weighted by samples.

    No client has more than `MOST_WEIGHT` times the median weight.

    Args:
        contents: The clients' metrics.
        key: The metric that is the weight.
    """
    sums: dict[str, list[float]] = {}
    all_metrics = [_metrics(content) for content in contents]
    most = weight_limit([float(metrics[key]) for metrics in all_metrics], MOST_WEIGHT)
    for metrics in all_metrics:
        weight = min(float(metrics[key]), most)
        for name, value in metrics.items():
            if name != key and isinstance(value, int | float):
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += weight * value
                total[1] += weight
    return MetricRecord({name: total / weight for name, (total, weight) in sums.items()})


def to_evaluation(metrics: Mapping[str, Any]) -> Evaluation:
    """Pick accuracy and loss for the tables, NaN if no name matches; every other number has its own column."""
    fixed = {_matching_name(metrics, words) for words in (ACCURACY, LOSS)}
    others = {
        column: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in (*fixed, WEIGHT)
        and (column := re.sub(r"\W", "_", name, flags=re.ASCII)) not in RESERVED | {"accuracy", "loss"}
    }  # fmt: skip
    return Evaluation(_number(metrics, ACCURACY), _number(metrics, LOSS), int(metrics.get(WEIGHT, 0)), others)


def spread_over_clients(answers: Iterable[Message]) -> ClientSpread | None:
    """Summarize the accuracies of the clients that answered, or their losses if no client reports an accuracy.

    Args:
        answers: The clients' replies; unusable ones do not count.

    Returns:
        The summary; None without a usable reply.
    """
    usable = []
    for answer in answers:
        with suppress(InvalidMessage):
            usable.append(to_evaluation(_metrics(_check_answer(answer))))
    if not usable:
        return None
    metric = ACCURACY_METRIC if any(math.isfinite(each.accuracy) for each in usable) else LOSS_METRIC
    return ClientSpread.of((each.value(metric.name) for each in usable), metric)


def missing_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return which of accuracy and loss no metric has a matching name for."""
    return [words[0] for words in (ACCURACY, LOSS) if _matching_name(metrics, words) is None]


def _number(metrics: Mapping[str, Any], words: tuple[str, ...]) -> float:
    name = _matching_name(metrics, words)
    return math.nan if name is None else float(metrics[name])


def _matching_name(metrics: Mapping[str, Any], words: tuple[str, ...]) -> str | None:
    """Return the metric with exactly this name, or else the first whose name contains one of the words."""
    numbers = [name for name, value in metrics.items() if isinstance(value, int | float)]
    exact = [word for word in words if word in numbers]
    return next(iter([*exact, *(name for name in numbers if set(_words(name)) & set(words))]), None)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())


def _metrics(content: RecordDict) -> dict[str, Any]:
    return {name: value for record in content.metric_records.values() for name, value in record.items()}


def _check_answer(message: Message) -> RecordDict:
    """Return the content of a reply if its metrics can be used."""
    if message.has_error():
        raise InvalidMessage(f"error {message.error.code}: {message.error.reason}")
    metrics = _metrics(message.content)
    count = metrics.get(WEIGHT)
    if not isinstance(count, int | float) or not 0 < count < math.inf:
        raise InvalidMessage(f"{WEIGHT} {count!r}, which must be a number over 0: it is the weight of the metrics")
    infinite = [name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
    if infinite:
        raise InvalidMessage(f"{infinite[0]} {metrics[infinite[0]]}, which is not a finite number")
    for words, low, high in ((ACCURACY, 0.0, 1.0), (LOSS, -MAX_LOSS, MAX_LOSS)):
        for name, value in metrics.items():
            if set(_words(name)) & set(words) and isinstance(value, int | float) and not low <= value <= high:
                raise InvalidMessage(f"{name} {value:g}, which must be from {low:g} to {high:g}")
    return message.content
