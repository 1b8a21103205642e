"""The attackers of a run: the built-in attacks by name, who makes them, and their poisoned data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from fedbalancer.core.calls import create_object, load_class, read_call
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.task import BaseTask, Samples
from fedbalancer.core.types import ClientReport, Order, Weights
from fedbalancer.simulation.attacks.contract import Attack, AttackView, Collusion, DataAttack
from fedbalancer.simulation.attacks.reports import (
    EpochsLiar,
    LatencyLiar,
    LossDrift,
    MetadataLiar,
    OscillatingLatency,
    UtilityLiar,
)
from fedbalancer.simulation.attacks.updates import (
    AgainstMedian,
    Alternating,
    Backdoor,
    CommonDirection,
    Flip,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Silence,
    Sleeper,
    StepReplay,
    TargetedFlip,
    UpdateFlip,
    UpdateScale,
)

AnyTask = TypeVar("AnyTask", bound=BaseTask)

ATTACKS: dict[str, tuple[str, type[Attack]]] = {
    "metadata-liar": ("claims 10 times its losses (factor, field=all|high|low|sum)", MetadataLiar),
    "loss-drift": ("claims losses that grow by 5% per round (rate, most)", LossDrift),
    "utility-liar": ("claims 100 times its squared losses (factor)", UtilityLiar),
    "latency-liar": ("claims 1e9 times its seconds per batch (factor)", LatencyLiar),
    "oscillating-latency": ("claims a tenth of its seconds per batch in even rounds (factor)", OscillatingLatency),
    "epochs-liar": ("claims a hundredth of its trained epochs (factor, samples)", EpochsLiar),
    "label-flip": ("trains on flipped labels: class k of n becomes n - 1 - k", LabelFlip),
    "targeted-flip": ("trains on class 3 labelled as 6 (source, target)", TargetedFlip),
    "backdoor": ("trains on samples with a trigger and one label (target, size, value, factor)", Backdoor),
    "update-flip": ("sends the negative of its update (factor: times -factor)", UpdateFlip),
    "quiet-flip": ("the same, claims a constant loss (factor, after, every, loss)", Flip),
    "sleeper": ("the same times 3, after 15 honest rounds (factor, after, loss)", Sleeper),
    "alternating": ("the same times 9, in every second round (factor, every, loss)", Alternating),
    "silence": ("sends an update of zeros (loss)", Silence),
    "update-scale": ("sends its update times 1e30 (factor)", UpdateScale),
    "step-replay": ("sends twice the last step of the global model (factor, loss)", StepReplay),
    "common-direction": ("sends a random direction that all attackers share (factor, loss)", CommonDirection),
    "little-is-enough": ("sends the honest mean minus 1.5 standard deviations (z, loss)", LittleIsEnough),
    "inner-product": ("sends the negative of the honest mean times 3 (factor, loss)", InnerProduct),
    "against-median": ("sends values beyond all honest ones, against their direction (spread, loss)", AgainstMedian),
}
"""The built-in attacks: description and class by name."""

STEP = "attackers_step"
MODEL = "attackers_model"


class Attackers:
    """The attack of every client that is not honest.

    Args:
        attack_of: The attack of each attacking client.
    """

    def __init__(self, attack_of: Mapping[str, Attack]) -> None:
        self.attack_of = dict(attack_of)
        self._colludes = any(isinstance(attack, Collusion) for attack in attack_of.values())
        self._model = self._step = np.zeros(0, dtype=np.float32)

    @classmethod
    def draw(cls, attacks: Sequence[tuple[Attack, int]], clients: Sequence[str], seed: int) -> Attackers:
        """Draw the attacking clients; none makes two attacks.

        The draw depends on the seed and the clients only. If an attack gets more clients, the earlier ones stay.

        Args:
            attacks: Each attack with its number of clients.
            clients: Ids of all clients.
            seed: The run's seed.

        Raises:
            BadSetting: If there are more attackers than clients.
        """
        count = sum(number for _, number in attacks)
        if count > len(clients):
            raise BadSetting(f"setting attacks: {count} attackers are more than the {len(clients)} clients of the task")
        order = stream(seed, "attackers").permutation(len(clients)).tolist()
        drawn = iter(sorted(clients)[place] for place in order)
        return cls({next(drawn): attack for attack, number in attacks for _ in range(number)})

    def falsify(self, reports: Sequence[ClientReport], order: Order, weights: Weights) -> list[ClientReport]:
        """Return the reports of a round that the clients send; those of honest clients are unchanged.

        Args:
            reports: All honest reports of the round, in order of the clients' ids.
            order: The server's order.
            weights: The global model. The attackers remember it, to compute its change.
        """
        sent = {report.client: self._falsify_one(report, order) for report in reports}
        if self._colludes:
            sent |= self._collude(reports, order, weights)
        return [sent[report.client] for report in reports]

    def _falsify_one(self, report: ClientReport, order: Order) -> ClientReport:
        attack = self.attack_of.get(report.client)
        return report if attack is None else attack.falsify(report, order)

    def _collude(self, reports: Sequence[ClientReport], order: Order, weights: Weights) -> dict[str, ClientReport]:
        """Return the reports of the attackers that decide together, by client."""
        self._observe_model(weights)
        honest = [report.update for report in reports if report.client not in self.attack_of]
        view = AttackView(order, weights, self._step, honest)
        groups: dict[Collusion, list[ClientReport]] = {}
        for report in reports:
            attack = self.attack_of.get(report.client)
            if isinstance(attack, Collusion):
                groups.setdefault(attack, []).append(report)
        return {each.client: each for attack, group in groups.items() for each in attack.collude(group, view)}

    def _observe_model(self, weights: Weights) -> None:
        """Remember the last change of the model; a round without reports does not change it."""
        if len(self._model) != len(weights):
            self._model, self._step = weights, np.zeros_like(weights)
        elif not np.array_equal(self._model, weights):
            self._model, self._step = weights, weights - self._model

    def to_arrays(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {MODEL: self._model, STEP: self._step} if self._colludes else {}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Restore what `to_arrays` returned."""
        if self._colludes:
            self._model, self._step = arrays[MODEL], arrays[STEP]


def parse_attack(text: str) -> tuple[Attack, int]:
    """Parse an attack and its number of clients.

    Args:
        text: For example `metadata-liar:10`.

    Returns:
        The attack and the number of clients that make it.

    Raises:
        BadSetting: If the text is malformed or its class is not an attack.
        UnknownName: If there is no attack of this name.

    >>> parse_attack("update-flip(factor=100):5")
    (UpdateFlip(factor=100), 5)
    """
    place = f"attack {text!r}"
    name, colon, count = text.rpartition(":")
    if not colon or not count.strip().isdecimal() or int(count) < 1:
        raise BadSetting(f"{place} must name an attack and a number of clients, as in metadata-liar:10")
    path, arguments = read_call(place, name)
    if ":" in path:
        attack_class = load_class(place, path)
    elif path in ATTACKS:
        attack_class = ATTACKS[path][1]
    else:
        raise UnknownName("attack", path, ATTACKS)
    attack = create_object(place, attack_class, arguments)
    if not isinstance(attack, Attack):
        raise BadSetting(f"{place} is not an attack: it needs a method falsify(report, order)")
    return attack, int(count)


def make_attackers(attacks: Sequence[str], clients: Sequence[str], seed: int) -> Attackers | None:
    """Parse the attacks and draw their clients; None if all clients are honest."""
    return Attackers.draw([parse_attack(text) for text in attacks], clients, seed) if attacks else None


def poisons_data(attacks: tuple[str, ...]) -> bool:
    """Whether any of the attacks changes the clients' data."""
    return any(isinstance(parse_attack(text)[0], DataAttack) for text in attacks)


def poison_task(task: AnyTask, attacks: tuple[str, ...], seed: int) -> AnyTask:
    """Return the task with the poisoned data of its attackers; the test data stay clean.

    Args:
        task: The clean task.
        attacks: The attacks by name.
        seed: The run's seed, which decides who attacks.

    Raises:
        BadSetting: If an attack changes data but the task's labels are not one class per sample.
    """
    if not poisons_data(attacks):
        return task
    labels = np.asarray(task.test[1])
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadSetting(f"setting attacks = {attacks}: the labels of task {task.name!r} are not one class per sample")
    attackers = make_attackers(attacks, tuple(sorted(task.sizes)), seed)
    assert attackers is not None
    attack_of = {client: attack for client, attack in attackers.attack_of.items() if isinstance(attack, DataAttack)}
    return replace(task, clients=_Poisoned(task, attack_of, task.classes or int(labels.max()) + 1))


@dataclass(frozen=True, eq=False)
class _Poisoned(Mapping[str, Samples]):
    """Clients of which some are poisoned, made on demand."""

    clean: BaseTask
    attack_of: Mapping[str, DataAttack]
    classes: int

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.clean.sizes

    def __getitem__(self, client: str) -> Samples:
        attack, samples = self.attack_of.get(client), self.clean.samples(client)
        return samples if attack is None else attack.poison(samples, self.classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clean.clients)

    def __len__(self) -> int:
        return len(self.clean.clients)
