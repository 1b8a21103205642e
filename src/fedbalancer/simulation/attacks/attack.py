"""What an attack is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fedbalancer.core.types import ClientReport, Order


@runtime_checkable
class Attack(Protocol):
    """What a client does to its own report before it sends it. It trains as ordered: time and energy are those of an
    honest client. The report is a value; the attack returns another one and keeps nothing for later. One that also
    trains on other data than it has is a `DataAttack`."""

    def falsified(self, report: ClientReport, order: Order) -> ClientReport:
        """The report as it is sent."""
        ...
