"""Data that attackers have changed before they train on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from fedbalancer.core.errors import BadSetting
from fedbalancer.core.task import BaseTask, MadeOnDemand, Samples
from fedbalancer.simulation.attacks.named import attackers_of, parse_attack

AnyTask = TypeVar("AnyTask", bound=BaseTask)


@runtime_checkable
class DataAttack(Protocol):
    """An attack that has other data to train on, too."""

    def poisoned(self, samples: Samples, classes: int) -> Samples:
        """A client's samples as it trains on them."""
        ...


def poisons(attacks: tuple[str, ...]) -> bool:
    """Whether any of the attacks is on data: then what clients train on depends on who they are."""
    return any(isinstance(parse_attack(text)[0], DataAttack) for text in attacks)


def with_poison(task: AnyTask, attacks: tuple[str, ...], seed: int) -> AnyTask:
    """The task as its attackers train on it; the test data stay as they are."""
    if not poisons(attacks):
        return task
    labels = np.asarray(task.test[1])
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadSetting(f"setting attacks = {attacks}: task {task.name!r} has no labels that are one class a sample")
    found = attackers_of(attacks, tuple(sorted(task.sizes)), seed)
    assert found is not None
    attack_of = {client: attack for client, attack in found.attack_of.items() if isinstance(attack, DataAttack)}
    kind = _PoisonedOnDemand if isinstance(task.clients, MadeOnDemand) else _Poisoned
    return replace(task, clients=kind(task.clients, attack_of, task.classes or int(labels.max()) + 1))


@dataclass(frozen=True)
class _Poisoned(Mapping[str, Samples]):
    clean: Mapping[str, Samples]
    attack_of: Mapping[str, DataAttack]
    classes: int

    def __getitem__(self, client: str) -> Samples:
        attack = self.attack_of.get(client)
        return self.clean[client] if attack is None else attack.poisoned(self.clean[client], self.classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clean)

    def __len__(self) -> int:
        return len(self.clean)


class _PoisonedOnDemand(_Poisoned):
    """Of clients whose samples are made when they are asked for."""

    @property
    def sizes(self) -> Mapping[str, int]:
        assert isinstance(self.clean, MadeOnDemand)
        return self.clean.sizes
