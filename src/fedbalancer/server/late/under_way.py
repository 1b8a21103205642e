"""What a policy remembers that has to know who is under way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnderWay:
    """The clients, in order of id, whose reports are still to come."""

    clients: tuple[str, ...] = ()
