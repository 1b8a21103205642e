"""Simulated attackers: clients that lie in their reports, send harmful updates, or train on poisoned data.

An attack is named as `metadata-liar:10`, `update-flip(factor=100):5` or `package.module:Class:3`, with the number of
clients that make it. Attackers exist in the simulator only, to test methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np

from fedbalancer.core.calls import read_call
from fedbalancer.core.errors import BadSetting, UnknownName
from fedbalancer.core.randomness import stream
from fedbalancer.core.samples import IGNORED
from fedbalancer.core.task import BaseTask, Samples
from fedbalancer.core.types import ClientReport, Order, Summary
from fedbalancer.methods.slots import create_object, load_class

__all__ = [
    "ATTACKS",
    "Attack",
    "Attackers",
    "DataAttack",
    "EpochsLiar",
    "LabelFlip",
    "LatencyLiar",
    "MetadataLiar",
    "UpdateFlip",
    "UpdateScale",
    "UtilityLiar",
    "make_attackers",
    "parse_attack",
    "poison_task",
    "poisons_data",
]

AnyTask = TypeVar("AnyTask", bound=BaseTask)


@runtime_checkable
class Attack(Protocol):
    """Changes a client's report before it is sent.

    The client trains as ordered, so its time and energy are those of an honest client. An attack keeps no state. One
    that also changes the client's data is a `DataAttack`.
    """

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report that the client sends.

        Args:
            report: The honest report.
            order: The server's order.
        """
        ...


@runtime_checkable
class DataAttack(Protocol):
    """An attack that also changes the data that the client trains on."""

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples that the client trains on.

        Args:
            samples: The client's features and labels.
            classes: Number of classes of the task.
        """
        ...


def _check_positive(factor: float) -> None:
    if not 0 < factor < math.inf:
        raise ValueError(f"factor = {factor} must be a finite number > 0")


@dataclass(frozen=True)
class EpochsLiar:
    """Understates its training, so that the server computes a wrong speed.

    The client claims that its few batches took all the time that the server measured.

    Args:
        factor: Claimed epochs, as a multiple of the trained ones.
        samples: Claimed samples, as a share of the trained ones.
    """

    factor: float = 0.01
    samples: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and 0 < self.samples <= 1):
            raise ValueError(f"factor = {self.factor} must be > 0, and samples = {self.samples} must be in (0, 1]")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with fewer epochs, fewer samples and slower batches."""
        epochs = min(report.epochs * self.factor, float(order.epochs))
        trained = max(int(report.summary.trained * self.samples), 1)
        batches = max(epochs * order.per_epoch(trained), 1.0)
        total_s = report.timings.total_s
        batch_s = total_s / batches if total_s > 0 else report.summary.batch_s / self.factor
        summary = replace(report.summary, trained=trained, batch_s=batch_s)
        return replace(report, epochs=epochs, weight=min(report.weight, float(trained)), summary=summary)


@dataclass(frozen=True)
class LabelFlip:
    """Trains on flipped labels: class k of n becomes n - 1 - k.

    Its report is honest: an update of usual length, and high losses. Tolpegin et al., "Data Poisoning Attacks Against
    Federated Learning Systems", ESORICS 2020, flip one class into another; this attack flips all of them.
    """

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples with flipped labels."""
        features, labels = samples
        old = np.asarray(labels)
        return features, np.where(old == IGNORED, old, classes - 1 - old).astype(old.dtype)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report unchanged."""
        return report


@dataclass(frozen=True)
class LatencyLiar:
    """Lies about its speed, to delay deadlines (or, with a factor below 1, to exclude others).

    Args:
        factor: Claimed seconds per batch, as a multiple of the true ones.
    """

    factor: float = 1e9

    def __post_init__(self) -> None:
        _check_positive(self.factor)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with another batch latency."""
        summary = report.summary
        return replace(report, summary=replace(summary, batch_s=summary.batch_s * self.factor))


Field = Literal["all", "high", "low", "sum"]


@dataclass(frozen=True)
class MetadataLiar:
    """Lies about its losses, to move the loss threshold and the pace.

    If the client releases a histogram, it claims that all samples are in the last bin, or in the first one for a factor
    below 1. If it releases a fraction, it claims 1, or 0.

    Args:
        factor: Claimed losses, as a multiple of the true ones.
        field: The falsified statistic: "high", "low", "sum", or "all" for a consistent lie.
    """

    factor: float = 10.0
    field: Field = "all"

    def __post_init__(self) -> None:
        if not (0 <= self.factor < math.inf and self.field in get_args(Field)):
            raise ValueError(
                f"factor = {self.factor} must be >= 0, and field = {self.field!r} one of {', '.join(get_args(Field))}"
            )

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with other losses."""
        summary = report.summary
        replaces_statistics = summary.released and not summary.loss_count
        lie = self._falsify_released(summary) if replaces_statistics else self._falsify_statistics(summary)
        return replace(report, summary=lie)

    def _falsify_statistics(self, summary: Summary) -> Summary:
        names = ("low", "high", "sum") if self.field == "all" else (self.field,)
        lies = {f"loss_{name}": getattr(summary, f"loss_{name}") * self.factor for name in names}
        if self.field == "all":
            lies["over_sumsq"] = summary.over_sumsq * self.factor * self.factor
        return replace(summary, **lies)

    def _falsify_released(self, summary: Summary) -> Summary:
        counts = summary.released
        if len(counts) == 1:  # the fraction of losses over the threshold
            return replace(summary, released=(float(self.factor >= 1),))
        rest = (0.0,) * (len(counts) - 1)
        total = (math.fsum(counts),)
        return replace(summary, released=(*rest, *total) if self.factor >= 1 else (*total, *rest))


@dataclass(frozen=True)
class UpdateFlip:
    """Sends the negative of its update, which undoes what it has learned.

    Args:
        factor: Length of the sent update, as a multiple of the true one. With 100 it outweighs a cohort.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.factor)

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with the negative update."""
        with np.errstate(over="ignore"):
            return replace(report, update=(report.update * -self.factor).astype(np.float32))


@dataclass(frozen=True)
class UpdateScale:
    """Sends an update that is far too long; values that overflow are infinite.

    Args:
        factor: Length of the sent update, as a multiple of the true one.
    """

    factor: float = 1e30

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor = {self.factor} must be a finite number")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with the scaled update."""
        with np.errstate(over="ignore"):
            return replace(report, update=(report.update * self.factor).astype(np.float32))


@dataclass(frozen=True)
class UtilityLiar:
    """Lies about its squared losses, so that it is selected more often.

    Args:
        factor: Claimed squared losses, as a multiple of the true ones.
    """

    factor: float = 100.0

    def __post_init__(self) -> None:
        if not 0 <= self.factor < math.inf:
            raise ValueError(f"factor = {self.factor} must be a finite number >= 0")

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report with other squared losses."""
        summary = report.summary
        return replace(report, summary=replace(summary, over_sumsq=summary.over_sumsq * self.factor))


ATTACKS: dict[str, tuple[str, type[Attack]]] = {
    "metadata-liar": ("claims 10 times its losses (factor, field=all|high|low|sum)", MetadataLiar),
    "utility-liar": ("claims 100 times its squared losses (factor)", UtilityLiar),
    "latency-liar": ("claims 1e9 times its seconds per batch (factor)", LatencyLiar),
    "epochs-liar": ("claims a hundredth of its trained epochs (factor, samples)", EpochsLiar),
    "label-flip": ("trains on flipped labels: class k of n becomes n - 1 - k", LabelFlip),
    "update-flip": ("sends the negative of its update (factor: times -factor)", UpdateFlip),
    "update-scale": ("sends its update times 1e30 (factor)", UpdateScale),
}
"""The built-in attacks: description and class by name."""


class Attackers:
    """The attack of every client that is not honest.

    Args:
        attack_of: The attack of each attacking client.
    """

    def __init__(self, attack_of: Mapping[str, Attack]) -> None:
        self.attack_of = dict(attack_of)

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

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report that its client sends; that of an honest client is unchanged."""
        attack = self.attack_of.get(report.client)
        return report if attack is None else attack.falsify(report, order)


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
