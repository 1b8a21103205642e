"""The contract of attacks: they change reports, alone or together with the other attackers, and poison data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedbalancer.core.task import Samples
from fedbalancer.core.types import ClientReport, Order, Weights


@runtime_checkable
class Attack(Protocol):
    """Changes a client's report before it is sent.

    The client trains as ordered, so its time and energy are those of an honest client. An attack keeps no state. One
    that also changes the client's data is a `DataAttack`; one that needs the other attackers derives from `Collusion`.
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
    """An attack that also changes the data that the client trains on.

    It may have a second method, `victims(samples, classes)`: the test samples that it tries to spoil.
    """

    def poison(self, samples: Samples, classes: int) -> Samples:
        """Return the samples that the client trains on.

        Args:
            samples: The client's features and labels.
            classes: Number of classes of the task.
        """
        ...


@runtime_checkable
class TargetedAttack(Protocol):
    """An attack that spoils some test samples only."""

    def victims(self, samples: Samples, classes: int) -> Samples:
        """Return the test samples, with their true labels, that the attack tries to spoil.

        Args:
            samples: The clean test samples.
            classes: Number of classes of the task.
        """
        ...


@dataclass(frozen=True, eq=False)
class AttackView:
    """The knowledge of the attackers of a round: the strongest assumption of the literature, full knowledge.

    Args:
        order: The server's order.
        weights: The model that the server sent.
        last_step: The last change of the global model; zeros before the first.
        honest: The updates of the round's honest clients, in order of their ids.
    """

    order: Order
    weights: Weights
    last_step: Weights
    honest: Sequence[Weights]


class Collusion(ABC):
    """Base of attacks whose clients decide together what they send.

    An attacker that does not get the others' reports sends its honest one.
    """

    def falsify(self, report: ClientReport, order: Order) -> ClientReport:
        """Return the report unchanged: `collude` changes it."""
        return report

    @abstractmethod
    def collude(self, reports: Sequence[ClientReport], view: AttackView) -> list[ClientReport]:
        """Return the reports that the attackers of a round send.

        Args:
            reports: Their honest reports, in order of their ids; at least one.
            view: What they know.
        """
