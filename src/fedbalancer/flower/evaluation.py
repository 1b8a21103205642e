"""A model on data: the clients' numbers as one, under whatever names they have."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.randomness import stream
from fedbalancer.core.types import Evaluation
from fedbalancer.flower.compat import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from fedbalancer.flower.mailbox import OutgoingMessage
from fedbalancer.flower.messages import ARRAYS, CONFIG, EVALUATE, WEIGHT, InvalidMessage
from fedbalancer.server.report_check import BIGGEST_LOSS, MOST_WEIGHT, heaviest

if TYPE_CHECKING:
    from fedbalancer.flower.grid_engine import GridEngine

MOST_NAMES = 100


class MetricNames:
    """The names admitted so far, at most `MOST_NAMES` in a run beside the number of samples. Of new names those that
    most clients send come first, so that one client cannot keep out the metrics of the others."""

    def __init__(self, log_event: Callable[..., None], names: Iterable[str] = ()) -> None:
        self._log_event, self.names = log_event, set(names)
        self._refused = False

    def kept(self, contents: Sequence[RecordDict]) -> list[RecordDict]:
        """The clients' metrics without those whose names are not admitted."""
        sent = Counter(name for content in contents for name in _names(content))
        fresh = sorted((name for name in sent if name not in self.names), key=lambda name: (-sent[name], name))
        room = MOST_NAMES - len(self.names)
        self.names |= set(fresh[:room])
        refused = set(fresh[room:])
        if refused and not self._refused:
            self._refused = True
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


EVALUATE_S, SOON_S = 120.0, 10.0
"""How long the clients have to evaluate a model, and how long the second half at least once the first is in."""
ACCURACY, LOSS = ("accuracy", "acc"), ("loss",)
"""Words by which the two metrics of our tables are known: `acc`, `eval_acc` and `test-accuracy` are an accuracy."""

CombineMetrics = Callable[[list[RecordDict], str], MetricRecord]
"""(the clients' answers, the key of their weights) -> their metrics as one: Flower's `train_metrics_aggr_fn` and
`evaluate_metrics_aggr_fn`."""


def questions(engine: GridEngine, clients: Iterable[str], arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
    """A message for each of the clients that asks it to evaluate a model."""
    content = RecordDict({ARRAYS: arrays, CONFIG: config})
    return [Message(content, engine.nodes.node_of[client], EVALUATE) for client in clients]


def asked(engine: GridEngine, messages: Iterable[Message], round: int) -> list[Message]:
    """The answers to such messages, of the model after `round`; who has not answered in time is named in the log."""
    names = {node: client for client, node in engine.nodes.node_of.items()}
    letters = []
    for message in messages:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if kind != EVALUATE or node not in engine.nodes.connected:
            raise BadSetting(f"configure_evaluate made a message of type {kind!r} for node {node}; it must be of type "
                             f"{EVALUATE!r}, for a node that is there")  # fmt: skip
        letters.append(OutgoingMessage(node, names.get(node, f"node {node}"), message.content))
    engine.answers = []
    sent = engine.mailbox.send(EVALUATE, letters, 0, EVALUATE_S)
    _wait_for_answers(engine, len(sent))
    for client in sorted({one.client for one in sent} - {answer.sent.client for answer in engine.answers}):
        engine.log_event("evaluation failed", client=client, round=round, why="no reply in time")
    return [answer.message for answer in engine.answers]


def _wait_for_answers(engine: GridEngine, count: int) -> None:
    """Not for those that take more than twice as long as half of them: one that died must not cost two minutes."""
    clock = engine.waiting.clock
    began, limit_s = clock(), EVALUATE_S
    while len(engine.answers) < count and clock() - began < limit_s:
        engine.poll()
        if limit_s == EVALUATE_S and 2 * len(engine.answers) >= count:
            limit_s = min(max(2 * (clock() - began), SOON_S), EVALUATE_S)
        engine.waiting.sleep(engine.waiting.poll_s)


def combine_metrics(
    answers: Iterable[Message],
    fault: Callable[[int, str], None],
    names: MetricNames,
    pool: CombineMetrics | None = None,
) -> dict[str, Any]:
    """The metrics of the clients that answered as one, and the number of samples; `fault` is called with every node
    whose answer cannot be used, and why. `names` are the metrics that are recorded."""
    usable = []
    for answer in answers:
        try:
            usable.append(_checked(answer))
        except InvalidMessage as problem:
            fault(answer.metadata.src_node_id, str(problem))
    if not usable:
        return {}
    usable = names.kept(usable)
    found = dict((pool or weighted_mean)(usable, WEIGHT))
    return found | {WEIGHT: int(sum(_metrics(content)[WEIGHT] for content in usable))}


def weighted_mean(contents: list[RecordDict], key: str) -> MetricRecord:
    """Every metric that is one number, weighted by samples, over the clients that have it. No client has more than
    `MOST_WEIGHT` times the median weight."""
    sums: dict[str, list[float]] = {}
    all_metrics = [_metrics(content) for content in contents]
    most = heaviest([float(metrics[key]) for metrics in all_metrics], MOST_WEIGHT)
    for metrics in all_metrics:
        weight = min(float(metrics[key]), most)
        for name, value in metrics.items():
            if name != key and isinstance(value, int | float):
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += weight * value
                total[1] += weight
    return MetricRecord({name: total / weight for name, (total, weight) in sums.items()})


def to_evaluation(found: Mapping[str, Any]) -> Evaluation:
    """The two numbers of our tables; NaN for one that none of the names stands for."""
    return Evaluation(_number(found, ACCURACY), _number(found, LOSS), int(found.get(WEIGHT, 0)))


def missing_metrics(found: Mapping[str, Any]) -> list[str]:
    """Which of the two numbers is not among these metrics."""
    return [words[0] for words in (ACCURACY, LOSS) if _name(found, words) is None]


def _number(found: Mapping[str, Any], words: tuple[str, ...]) -> float:
    name = _name(found, words)
    return math.nan if name is None else float(found[name])


def _name(found: Mapping[str, Any], words: tuple[str, ...]) -> str | None:
    """The metric that is called so, or else the first with such a word in its name."""
    numbers = [name for name, value in found.items() if isinstance(value, int | float)]
    exact = [word for word in words if word in numbers]
    return next(iter([*exact, *(name for name in numbers if set(_words(name)) & set(words))]), None)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())


def _metrics(content: RecordDict) -> dict[str, Any]:
    return {name: value for record in content.metric_records.values() for name, value in record.items()}


def _checked(message: Message) -> RecordDict:
    """What a client answered, if it can be used."""
    if message.has_error():
        raise InvalidMessage(f"error {message.error.code}: {message.error.reason}")
    metrics = _metrics(message.content)
    count = metrics.get(WEIGHT)
    if not isinstance(count, int | float) or not 0 < count < math.inf:
        raise InvalidMessage(
            f"{WEIGHT} {count!r}, which must be a number over 0: it is the weight of the client's metrics"
        )
    strange = [name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
    if strange:
        raise InvalidMessage(f"{strange[0]} {metrics[strange[0]]}, which is not a finite number")
    for words, low, high in ((ACCURACY, 0.0, 1.0), (LOSS, -BIGGEST_LOSS, BIGGEST_LOSS)):
        for name, value in metrics.items():
            if set(_words(name)) & set(words) and isinstance(value, int | float) and not low <= value <= high:
                raise InvalidMessage(f"{name} {value:g}, which must be from {low:g} to {high:g}")
    return message.content


@dataclass(frozen=True)
class Evaluators:
    """Which clients evaluate: a `fraction` of those that are there, and at least so many; none where it is 0."""

    fraction: float = 0.0
    least: int = 0

    @classmethod
    def of(
        cls, federated: bool, fraction: float | None, least: int | None, fruitless_rounds: Iterable[str]
    ) -> Evaluators:  # fmt: skip
        """What the arguments say. `fruitless_rounds` names what else was given for an evaluation on clients."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadSetting(f"fraction_evaluate = {fraction} must be from 0 to 1")
        if least is not None and least < 0:
            raise BadSetting(f"min_evaluate_nodes = {least} must be at least 0")
        if federated and fraction == 0:
            raise BadSetting("federated_evaluate=True and fraction_evaluate = 0 contradict each other")
        given = [*fruitless_rounds, *([] if least is None else ["min_evaluate_nodes"])]
        if not federated and fraction is None and given:
            raise BadSetting(f"{given[0]} would have no effect: clients evaluate only with federated_evaluate=True")
        share = (1.0 if federated else 0.0) if fraction is None else float(fraction)
        return cls(share, (least or 0) if share else 0)

    def drawn(self, clients: Sequence[str], seed: int, round: int) -> list[str]:
        """Those that evaluate after a round, in order of id."""
        count = min(max(int(len(clients) * self.fraction), self.least), len(clients))
        rng = stream(seed, "evaluate", round)
        return sorted(clients[place] for place in rng.choice(len(clients), count, replace=False).tolist())
